"use strict";
// Draws each plot from the data beside it; again when the page's width or its colours change.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const places = [...document.querySelectorAll(".plot")].map((place) => ({
    place, plot: JSON.parse(place.parentElement.querySelector("script").textContent), drawn: null,
  }));

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => value == null ? "" :
    Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));

  // Bars on top of each other: each series is drawn as the sum of it and those before, the last one first.
  function stack(data) {
    const sums = data[0].map(() => 0);
    const piled = data.slice(1).map((values) => values.map((value, at) => sums[at] += value ?? 0));
    return [data[0], ...piled];
  }

  function options(plot, width) {
    const palette = dark.matches ? plot.dark : plot.light;
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--rule"), width: 1 },
      ticks: { stroke: colour("--rule") }, font: "12px system-ui, sans-serif" };
    const count = plot.names.length;
    const bars = uPlot.paths.bars({ size: [0.6, 80] });
    const series = plot.names.map((name, at) => {
      const own = palette[at];
      const value = (_, drawn, __, index) => index == null ? "–" : short(plot.data[at + 1][index]);
      return plot.stacked
        ? { label: name, value, fill: own, stroke: own, paths: bars, points: { show: false } }
        : { label: name, value, stroke: own, width: 2, spanGaps: true,
            paths: plot.joined ? undefined : () => null,
            dash: plot.dashed[at] ? [6, 4] : undefined,
            points: { show: !plot.joined || plot.data[0].length < 60, size: plot.joined ? 6 : 9, fill: own } };
    });
    const x = { label: plot.x || undefined, ...axis, labelFont: axis.font };
    if (plot.labels.length) {
      x.splits = plot.labels.map((_, at) => at);
      // Names that do not fit side by side are rotated. If there is no room for that either, only some are written.
      const room = (width - 100) / plot.labels.length, letters = Math.max(...plot.labels.map((label) => label.length));
      const every = Math.ceil(14 / room);
      x.values = plot.labels.map((label, at) => at % every ? "" : label);
      if (room < 7 * letters) {
        x.rotate = 40;
        x.size = 30 + 4.4 * letters;
      }
    } else {
      if (plot.x_log) {
        // 1, 2 and 5 of each power of ten: all would run into each other, the powers alone may be none.
        x.filter = (_, splits) => splits.map((value) =>
          [1, 2, 5].includes(Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9))) ? value : null);
      }
      x.values = (_, splits) => splits.map((value) => value == null ? "" : short(value));
    }
    return {
      width, height: Math.max(256, Math.min(420, width * 0.5)) + (x.size ?? 0),
      scales: {
        x: { time: false, distr: plot.x_log ? 3 : 1,
             range: plot.labels.length ? [-0.6, plot.labels.length - 0.4] : undefined },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] },
      },
      series: [{ label: plot.x || " ", value: (_, value) =>
        value == null ? "–" : plot.labels.length ? plot.labels[value] : short(value) },
        ...(plot.stacked ? series.reverse() : series)],
      axes: [x, { label: plot.y, ...axis, size: 70, labelFont: axis.font,
        values: (_, splits) => splits.map(short) }],
      legend: { live: count <= 8 },
    };
  }

  function draw() {
    for (const at of places) {
      at.drawn?.destroy();
      const { plot } = at;
      let data = plot.stacked ? stack(plot.data) : plot.data;
      if (plot.stacked) {
        data = [data[0], ...data.slice(1).reverse()];
      }
      at.drawn = new uPlot(options(plot, at.place.clientWidth), data, at.place);
    }
  }

  let width = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth !== width) {
      width = document.documentElement.clientWidth;
      draw();
    }
  });
  dark.addEventListener("change", draw);
  draw();
})();
