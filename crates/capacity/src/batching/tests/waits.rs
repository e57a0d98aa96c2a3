//! The simulation against closed forms where there are some.

use super::*;

fn run(mode: Mode, offered_per_s: f64) -> Run {
    Run {
        mode,
        offered_per_s,
        arrivals: 200_000,
        seed: 7,
    }
}

const FIXED: Mode = Mode::Fixed { max_wait_us: 5_000.0 };

#[test]
fn one_connection_without_batches_is_the_queue_m_d_1() {
    // Pollaczek and Khinchine: mean wait ρ·S / 2(1 − ρ). 1,000 µs a look-up.
    let model = model(800.0, 150.0, 50.0, 1);
    for load in [0.3, 0.6, 0.8] {
        let outcome = simulate(&model, shape(1, 64), run(Mode::Single, load * 1000.0));
        let formula = load * 1000.0 / (2.0 * (1.0 - load));
        assert!(close(outcome.mean_wait_us, formula, 0.05), "{load}: {outcome:?}");
        assert!(close(outcome.mean_response_us, formula + 1000.0, 0.05));
        assert!(close(outcome.mean_rows, 1.0, 1e-12) && !outcome.saturated);
        assert!(close(outcome.carried_per_s, load * 1000.0, 0.01));
    }
}

#[test]
fn adaptive_adds_nothing_while_connections_are_idle() {
    let model = model(30_000.0, 200.0, 8.0, 2);
    let outcome = simulate(&model, shape(8, 128), run(Mode::Adaptive, 1.0));
    assert!(
        outcome.mean_wait_us < 1.0 && close(outcome.mean_rows, 1.0, 1e-3),
        "{outcome:?}"
    );
    assert!(close(outcome.mean_response_us, 30_208.0, 1e-3));
    // Where a fixed batch waits for its timer at each call.
    let outcome = simulate(&model, shape(8, 128), run(FIXED, 1.0));
    assert!(close(outcome.mean_wait_us, 5_000.0, 0.01), "{outcome:?}");
    assert!(close(Model::fixed_wait_us(128, 5_000.0, 1.0), 5_000.0, 0.01));
}

#[test]
fn fixed_batches_wait_for_others_or_the_timer() {
    let model = model(1_000.0, 100.0, 1.0, 64);
    // 0.4 others in 5 ms; 20 of them; batches of 16 filled in 0.8 ms; 1 row is always full.
    for (rate, max_batch) in [(80.0, 128), (4_000.0, 128), (20_000.0, 16), (20_000.0, 1)] {
        let outcome = simulate(&model, shape(512, max_batch), run(FIXED, rate));
        let formula = Model::fixed_wait_us(max_batch, 5_000.0, rate);
        let within = (outcome.mean_wait_us - formula).abs() <= 0.03 * formula + 1e-6;
        assert!(within, "{rate}, {max_batch}: {formula} {outcome:?}");
        assert!(outcome.mean_wait_us <= 5_000.0 && outcome.p99_wait_us <= 5_000.1);
        let rows = (1.0 + rate * 0.005).min(f64::from(max_batch));
        assert!(close(outcome.mean_rows, rows, 0.03), "{rate}: {outcome:?}");
    }
}

#[test]
fn adaptive_batches_grow_with_the_load() {
    // Within a tenth of what even arrivals give, with one connection; chance gathers a little more or less with
    // many, since answers come back in bunches.
    let one = model(30_000.0, 200.0, 8.0, 1);
    for rate in [300.0, 1_000.0, 2_000.0] {
        let outcome = simulate(&one, shape(1, 128), run(Mode::Adaptive, rate));
        let rows = one.adaptive_rows(shape(1, 128), rate);
        assert!(close(outcome.mean_rows, rows, 0.1), "{rate}: {rows} {outcome:?}");
        let wait = one.adaptive_wait_us(shape(1, 128), rate);
        assert!(
            close(outcome.mean_wait_us, wait, 0.1),
            "{rate}: {wait} {outcome:?}"
        );
    }
    for (connections, rate) in [(4, 8_000.0), (8, 8_000.0), (16, 12_000.0)] {
        let outcome = simulate(&one, shape(connections, 128), run(Mode::Adaptive, rate));
        let rows = one.adaptive_rows(shape(connections, 128), rate);
        assert!(
            close(outcome.mean_rows, rows, 0.35),
            "{connections}: {rows} {outcome:?}"
        );
    }
    // A database that is the bottleneck makes batches, too: 12,000/s at 200 µs a batch and one core.
    let near = model(0.0, 200.0, 8.0, 1);
    let outcome = simulate(&near, shape(64, 128), run(Mode::Adaptive, 12_000.0));
    assert!(
        !outcome.saturated && close(outcome.carried_per_s, 12_000.0, 0.02),
        "{outcome:?}"
    );
    assert!(close(near.adaptive_rows(shape(64, 128), 12_000.0), 2.65, 0.01));
}

#[test]
fn past_its_peak_a_pool_carries_its_peak() {
    for (connections, max_batch, cores) in [(1, 1, 1), (4, 16, 1), (32, 16, 1), (32, 16, 4), (512, 1, 2)] {
        let model = model(30_000.0, 123.0, 77.0, cores);
        let shape = shape(connections, max_batch);
        let peak = model.throughput(shape);
        for mode in [Mode::Adaptive, FIXED] {
            let outcome = simulate(&model, shape, run(mode, peak.per_s * 1.5));
            assert!(outcome.saturated, "{shape:?}");
            assert!(
                close(outcome.carried_per_s, peak.per_s, 0.02),
                "{peak:?} {outcome:?}"
            );
            assert!(
                close(outcome.mean_rows, f64::from(max_batch), 0.01),
                "{outcome:?}"
            );
        }
        // And shortly below it, everything: the peak is no bound of paper only.
        let outcome = simulate(&model, shape, run(Mode::Adaptive, peak.per_s * 0.95));
        assert!(!outcome.saturated);
        assert!(
            close(outcome.carried_per_s, peak.per_s * 0.95, 0.02),
            "{peak:?} {outcome:?}"
        );
    }
}

#[test]
fn more_than_may_wait_is_refused() {
    let model = model(1_000_000.0, 0.0, 0.0, 1);
    let outcome = simulate(&model, shape(1, 1), run(Mode::Adaptive, 1e6));
    assert!(outcome.saturated && outcome.refused > 90_000, "{outcome:?}");
}

#[test]
fn the_same_seed_gives_the_same() {
    let model = model(30_000.0, 200.0, 8.0, 1);
    let of = |seed| {
        let run = Run {
            seed,
            ..run(Mode::Adaptive, 3_000.0)
        };
        simulate(&model, shape(4, 64), run)
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    assert!(close(of(1).mean_wait_us, of(2).mean_wait_us, 0.05));
}

#[test]
fn the_cpu_of_the_proxy_caps_the_curve() {
    let parameters = Parameters {
        cpu_per_call_us: Some(100.0),
        ..*model(30_000.0, 200.0, 8.0, 4).parameters()
    };
    let model = Model::new(parameters).expect("in range");
    let peak = model.throughput(shape(64, 128));
    assert_eq!(peak.limit, Limit::ProxyCpu);
    assert!(close(peak.per_s, 10_000.0, 1e-9));
    let points = curve(&model, shape(64, 128), Mode::Adaptive, 5_000, 1);
    assert_eq!(points.len(), LOADS.len());
    for point in &points {
        let outcome = point.outcome;
        assert_eq!(outcome.saturated, outcome.offered_per_s >= peak.per_s);
        assert!(outcome.carried_per_s <= peak.per_s && point.out_kbit_per_s > 0.0);
    }
}

#[test]
fn connections_that_leave_together_come_back_together() {
    // Seven connections at four fifths of their peak: evenly, a batch would leave every 4.3 ms.
    let model = model(30_000.0, 200.0, 8.0, 1);
    let shape = shape(7, 64);
    let even = model.adaptive_wait_us(shape, 12_000.0);
    assert!(close(even, 2_190.0, 0.01));
    let bunched = simulate(&model, shape, run(Mode::Adaptive, 12_000.0));
    let half = model.response_us(bunched.mean_rows) / 2.0;
    assert!((4.0 * even..half).contains(&bunched.mean_wait_us), "{bunched:?}");
    // Spacing them takes that away, with the same batches, and adds nothing where calls are rare.
    let spaced = Mode::Spaced { max_gap_us: 5_000.0 };
    let outcome = simulate(&model, shape, run(spaced, 12_000.0));
    assert!(outcome.mean_wait_us < 1.3 * even, "{outcome:?}");
    assert!(
        close(outcome.mean_rows, bunched.mean_rows, 0.1),
        "{outcome:?} {bunched:?}"
    );
    let outcome = simulate(&model, shape, run(spaced, 1.0));
    assert!(outcome.mean_wait_us < 20.0, "{outcome:?}");
    let peak = model.throughput(shape).per_s;
    let outcome = simulate(&model, shape, run(spaced, 1.5 * peak));
    assert!(close(outcome.carried_per_s, peak, 0.02), "{outcome:?}");
}
