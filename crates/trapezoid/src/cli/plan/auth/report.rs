//! The output of `trapezoid plan auth`.

use std::fmt::{self, Write};

use capacity::batching::{
    Candidate, Fit, Goal, Limit, Line, LoadPoint, Model, Shape, Throughput, powers_of_two,
};
use serde_json::{Value, json};

use super::super::units::{thousands, time_text};
use super::{Known, Origin, limit_text, settled};

/// All results of the computation.
#[derive(Debug)]
pub(super) struct Report {
    pub model: Model,
    pub goal: Goal,
    pub known: Known,
    /// The recommended configuration, at the target in adaptive mode.
    pub choice: (Candidate, LoadPoint),
    /// The fewest connections for each largest batch, at the target in adaptive mode.
    pub alternatives: Vec<(Candidate, LoadPoint)>,
    /// The recommended configuration at the requested load, in adaptive mode.
    pub adaptive: LoadPoint,
    /// The recommended configuration at the requested load, in fixed mode.
    pub fixed: LoadPoint,
    /// Longest wait in fixed mode.
    pub max_wait_us: f64,
    /// The recommended configuration at many loads, in adaptive and in fixed mode.
    pub curves: Option<(Vec<LoadPoint>, Vec<LoadPoint>)>,
}

impl Report {
    /// The report as text.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        self.write_known(out)?;
        self.write_choice(out)?;
        self.write_alternatives(out)?;
        self.write_grid(out)?;
        if let Some((adaptive, fixed)) = &self.curves {
            write_curve(out, "adaptive mode", adaptive)?;
            let fixed_title = format!("fixed mode, {} at most", time_text(self.max_wait_us));
            write_curve(out, &fixed_title, fixed)?;
        }
        Ok(())
    }

    fn write_known(&self, out: &mut String) -> fmt::Result {
        let Known { rtt_us, cost, .. } = self.known;
        let line = cost.line();
        let origin = match &self.known.origin {
            Origin::Given => "given",
            Origin::Fitted(_) => "measured",
        };
        writeln!(
            out,
            "A batch of b rows takes {} of the database and {} of the network ({origin}).",
            line_text(line),
            time_text(rtt_us)
        )?;
        if let Origin::Fitted(fit) = &self.known.origin {
            write_fit(out, fit)?;
        }
        for note in &self.known.notes {
            writeln!(out, "Note: {note}.")?;
        }
        Ok(())
    }

    fn write_choice(&self, out: &mut String) -> fmt::Result {
        let Candidate { shape, peak, .. } = self.choice.0;
        writeln!(
            out,
            "\nFor {}/s with a headroom of {}, least bandwidth:\n",
            thousands(self.goal.target_per_s),
            self.goal.headroom
        )?;
        writeln!(
            out,
            "[credentials]\nconnections = {}\nmax_batch = {}\n",
            shape.connections(),
            shape.max_batch()
        )?;
        writeln!(
            out,
            "Peak: {}/s, limited by {}.",
            thousands(peak.per_s),
            limit_text(peak.limit)
        )?;
        let offered = self.adaptive.outcome.offered_per_s;
        writeln!(out, "At {}/s:", thousands(offered))?;
        writeln!(out, "  adaptive mode: {}", point_text(&self.adaptive))?;
        writeln!(
            out,
            "  fixed mode, {} at most: {}",
            time_text(self.max_wait_us),
            point_text(&self.fixed)
        )
    }

    fn write_alternatives(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\nFewest connections for each largest batch, at the target in adaptive mode:\n\
             {:>9} {:>11} {:>10} {:>7} {:>10} {:>12} {:>12}",
            "max_batch", "connections", "peak/s", "rows", "wait", "kbit/s to", "kbit/s from"
        )?;
        for (candidate, point) in &self.alternatives {
            writeln!(
                out,
                "{:>9} {:>11} {:>10} {:>7.1} {:>10} {:>12} {:>12}{}",
                candidate.shape.max_batch(),
                candidate.shape.connections(),
                thousands(candidate.peak.per_s),
                point.outcome.mean_rows,
                wait_text(point, point.outcome.mean_wait_us),
                thousands(point.out_kbit_per_s),
                thousands(point.back_kbit_per_s),
                if candidate.shape == self.choice.0.shape {
                    "  *"
                } else {
                    ""
                }
            )?;
        }
        Ok(())
    }

    fn write_grid(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\nPeak a second by connections (down) and largest batch (across); limited by: d the database, \
             p the proxy's CPU, else the connections:"
        )?;
        write!(out, "{:>6}", "")?;
        for max_batch in powers_of_two(self.goal.max_batch) {
            write!(out, " {max_batch:>10} ")?;
        }
        writeln!(out)?;
        let mut row = 0;
        for (shape, peak) in self.grid() {
            if shape.connections() != row {
                if row != 0 {
                    writeln!(out)?;
                }
                row = shape.connections();
                write!(out, "{row:>6}")?;
            }
            let mark = match peak.limit {
                Limit::Connections => ' ',
                Limit::DatabaseBatches | Limit::DatabaseCpu => 'd',
                Limit::ProxyCpu => 'p',
            };
            write!(out, " {:>10}{mark}", thousands(peak.per_s))?;
        }
        writeln!(out)
    }

    /// Powers of two of connections and batch, and the most connections; ordered by connections, then by
    /// batch.
    fn grid(&self) -> impl Iterator<Item = (Shape, Throughput)> {
        let most = self.goal.max_connections;
        let last = (!most.is_power_of_two()).then_some(most);
        powers_of_two(most)
            .chain(last)
            .flat_map(|connections| {
                powers_of_two(self.goal.max_batch).filter_map(move |batch| Shape::new(connections, batch))
            })
            .map(|shape| (shape, self.model.throughput(shape)))
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> String {
        let parameters = self.model.parameters();
        let grid = self.grid().map(|(shape, peak)| {
            json!({
                "connections": shape.connections(),
                "max_batch": shape.max_batch(),
                "peak_per_s": peak.per_s,
                "limited_by": peak.limit.word(),
            })
        });
        let mut value = json!({
            "target_per_s": self.goal.target_per_s,
            "headroom": self.goal.headroom,
            "rtt_us": parameters.rtt_us,
            "db_cores": parameters.db_cores,
            "batch": batch_json(&self.known),
            "bytes": {
                "source": if self.known.bytes.is_some() { "metrics" } else { "paper" },
                "out": line_json(parameters.bytes.out()),
                "in": line_json(parameters.bytes.back()),
            },
            "choice": candidate_json(&self.choice),
            "at": {
                "adaptive": point_json(&self.adaptive),
                "fixed": point_json(&self.fixed),
                "fixed_max_wait_us": self.max_wait_us,
            },
            "alternatives": self.alternatives.iter().map(candidate_json).collect::<Value>(),
            "grid": Value::from_iter(grid),
            "notes": self.known.notes,
        });
        if let (Some((adaptive, fixed)), Some(object)) = (&self.curves, value.as_object_mut()) {
            let points = |points: &[LoadPoint]| points.iter().map(point_json).collect::<Value>();
            let curve = json!({ "adaptive": points(adaptive), "fixed": points(fixed) });
            object.insert("curve".to_owned(), curve);
        }
        format!("{value:#}\n")
    }
}

fn line_text(line: Line) -> String {
    format!("{} + {} · b", time_text(line.fixed()), time_text(line.per_row()))
}

fn write_fit(out: &mut String, fit: &Fit) -> fmt::Result {
    writeln!(
        out,
        "Measured, with the round trip: {}; off by {:.1} % in the mean, {:.1} % at worst:",
        line_text(fit.line),
        fit.mean_error() * 100.0,
        fit.worst_error() * 100.0
    )?;
    writeln!(
        out,
        "{:>8} {:>12} {:>10} {:>10} {:>8}",
        "rows", "batches", "measured", "line", "off by"
    )?;
    for residual in &fit.residuals {
        writeln!(
            out,
            "{:>8.1} {:>12} {:>10} {:>10} {:>+6.1} %",
            residual.size,
            thousands(residual.weight),
            time_text(residual.measured),
            time_text(residual.fitted),
            residual.relative_error() * 100.0
        )?;
    }
    Ok(())
}

fn point_text(point: &LoadPoint) -> String {
    let outcome = point.outcome;
    let wait = if settled(point) {
        format!(
            "{} mean wait ({} for 99 %)",
            time_text(outcome.mean_wait_us),
            time_text(outcome.p99_wait_us)
        )
    } else {
        format!(
            "more than the peak; {}/s are carried",
            thousands(outcome.carried_per_s)
        )
    };
    format!(
        "{wait}, {:.1} rows a batch, {} + {} kbit/s",
        outcome.mean_rows,
        thousands(point.out_kbit_per_s),
        thousands(point.back_kbit_per_s)
    )
}

/// A wait as text; past the peak it is not meaningful.
fn wait_text(point: &LoadPoint, us: f64) -> String {
    if settled(point) {
        time_text(us)
    } else {
        "–".to_owned()
    }
}

fn write_curve(out: &mut String, title: &str, points: &[LoadPoint]) -> fmt::Result {
    writeln!(
        out,
        "\nBy load, {title}:\n{:>10} {:>10} {:>10} {:>10} {:>7} {:>12} {:>12}",
        "offered/s", "carried/s", "wait", "99 %", "rows", "kbit/s to", "kbit/s from"
    )?;
    for point in points {
        let outcome = point.outcome;
        let wait = |us| wait_text(point, us);
        writeln!(
            out,
            "{:>10} {:>10} {:>10} {:>10} {:>7.1} {:>12} {:>12}",
            thousands(outcome.offered_per_s),
            thousands(outcome.carried_per_s),
            wait(outcome.mean_wait_us),
            wait(outcome.p99_wait_us),
            outcome.mean_rows,
            thousands(point.out_kbit_per_s),
            thousands(point.back_kbit_per_s)
        )?;
    }
    Ok(())
}

fn line_json(line: Line) -> Value {
    json!({ "fixed": line.fixed(), "per_row": line.per_row() })
}

fn batch_json(known: &Known) -> Value {
    let line = known.cost.line();
    let fixed_us = line.fixed();
    let per_row_us = line.per_row();
    match &known.origin {
        Origin::Given => json!({ "source": "given", "fixed_us": fixed_us, "per_row_us": per_row_us }),
        Origin::Fitted(fit) => {
            let sizes = fit.residuals.iter().map(|r| {
                json!({
                    "rows": r.size,
                    "batches": r.weight,
                    "measured_us": r.measured,
                    "fitted_us": r.fitted,
                    "relative_error": r.relative_error(),
                })
            });
            json!({
                "source": "metrics",
                "fixed_us": fixed_us,
                "per_row_us": per_row_us,
                "fitted_fixed_us": fit.line.fixed(),
                "mean_error": fit.mean_error(),
                "worst_error": fit.worst_error(),
                "sizes": Value::from_iter(sizes),
            })
        }
    }
}

fn candidate_json((candidate, point): &(Candidate, LoadPoint)) -> Value {
    json!({
        "connections": candidate.shape.connections(),
        "max_batch": candidate.shape.max_batch(),
        "peak_per_s": candidate.peak.per_s,
        "limited_by": candidate.peak.limit.word(),
        "at_target": point_json(point),
    })
}

/// One point as JSON; past the peak, waits are null.
fn point_json(point: &LoadPoint) -> Value {
    let outcome = point.outcome;
    let wait = |us: f64| settled(point).then_some(us);
    json!({
        "offered_per_s": outcome.offered_per_s,
        "carried_per_s": outcome.carried_per_s,
        "saturated": outcome.saturated,
        "mean_wait_us": wait(outcome.mean_wait_us),
        "p99_wait_us": wait(outcome.p99_wait_us),
        "mean_response_us": wait(outcome.mean_response_us),
        "rows": outcome.mean_rows,
        "out_kbit_per_s": point.out_kbit_per_s,
        "in_kbit_per_s": point.back_kbit_per_s,
    })
}
