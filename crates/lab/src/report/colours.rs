//! The colours of a chart: one for each series, no two alike, for a light and a dark background.

/// Colours for a light and a dark background. The first eight are the easiest to tell apart; neighbours differ in hue.
const CHOSEN: [(&str, &str); 20] = [
    ("#1d5fa8", "#7fb4ee"),
    ("#c2410c", "#fb923c"),
    ("#15803d", "#4ade80"),
    ("#7e22ce", "#c084fc"),
    ("#a87b08", "#facc15"),
    ("#0891a5", "#22d3ee"),
    ("#be185d", "#f472b6"),
    ("#475569", "#cbd5e1"),
    ("#65a30d", "#bef264"),
    ("#ef4444", "#f87171"),
    ("#312e81", "#818cf8"),
    ("#78350f", "#b98556"),
    ("#14b8a6", "#0f9d8c"),
    ("#c026d3", "#d946ef"),
    ("#0ea5e9", "#0284c7"),
    ("#3f4a12", "#84a34a"),
    ("#65102e", "#e11d63"),
    ("#111827", "#ffffff"),
    ("#8b8b8b", "#8b8b8b"),
    ("#f29100", "#fed7aa"),
];

/// Colours for `count` series, for a light and a dark background. The first are those chosen by eye. Further hues lie
/// at the golden angle from each other, so that none repeats.
pub(super) fn colours(count: usize) -> (Vec<String>, Vec<String>) {
    let chosen = CHOSEN
        .iter()
        .map(|(light, dark)| ((*light).to_owned(), (*dark).to_owned()));
    let further = (0_u32..).map(|at| {
        let hue = (f64::from(at) * 137.508 + 15.0) % 360.0;
        (format!("hsl({hue:.1} 55% 33%)"), format!("hsl({hue:.1} 55% 72%)"))
    });
    chosen.chain(further).take(count).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A colour in Oklab: lightness and two axes of colour. Distances in it are about as large as they look.
    fn oklab(hex: &str) -> [f64; 3] {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.040_45 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        let (r, g, b) = (part(1), part(3), part(5));
        let l = (0.412_221 * r + 0.536_333 * g + 0.051_446 * b).cbrt();
        let m = (0.211_903 * r + 0.680_700 * g + 0.107_397 * b).cbrt();
        let s = (0.088_302 * r + 0.281_719 * g + 0.629_979 * b).cbrt();
        [
            0.210_454 * l + 0.793_618 * m - 0.004_072 * s,
            1.977_998 * l - 2.428_592 * m + 0.450_594 * s,
            0.025_904 * l + 0.782_772 * m - 0.808_676 * s,
        ]
    }

    fn distance(one: &str, other: &str) -> f64 {
        let (a, b) = (oklab(one), oklab(other));
        let squares: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
        squares.sqrt()
    }

    #[test]
    fn chosen_colours_differ_from_each_other_and_from_the_ground() {
        let (light, dark) = colours(CHOSEN.len());
        for (all, ground) in [(&light, "#fdfdfb"), (&dark, "#14171a")] {
            for (index, one) in all.iter().enumerate() {
                assert!(distance(one, ground) > 0.3, "{one} on {ground}");
                for other in &all[..index] {
                    let apart = distance(one, other);
                    assert!(apart > 0.09, "{one} and {other}: {apart:.3}");
                }
            }
        }
    }

    #[test]
    fn no_number_of_series_repeats_a_colour() {
        let (light, dark) = colours(64);
        for all in [light, dark] {
            let different: std::collections::BTreeSet<&String> = all.iter().collect();
            assert_eq!(different.len(), 64);
        }
    }
}
