use proptest::prelude::*;

use super::*;

prop_compose! {
    fn any_model()(
        rtt_us in 0.0..MAX_TIME_US,
        fixed in 0.0..MAX_TIME_US,
        per_row in 0.0..MAX_TIME_US,
        scale in 0..7i32,
        db_cores in 1..=MAX_CORES,
        cpu in prop::option::of((0.0..1e4, 0.0..1e4)),
        cpu_per_call_us in prop::option::of(MIN_CPU_US..1e4),
    ) -> Model {
        // Small times as often as large ones.
        let scale = 10f64.powi(-scale);
        Model::new(Parameters {
            rtt_us: rtt_us * scale,
            batch: BatchCost::new(Line::new(fixed * scale, per_row * scale).expect("in range")),
            db_cores,
            db_cpu: cpu.and_then(|(fixed, per_row)| Line::new(fixed, per_row)),
            cpu_per_call_us,
            bytes: BytesCost::OF_THE_PAPER,
        }).expect("in range")
    }
}

fn any_shape() -> impl Strategy<Value = Shape> {
    (1..=MAX_CONNECTIONS, 1..=MAX_BATCH).prop_map(|(p, b)| shape(p, b))
}

/// Finite and not negative.
fn sound(values: &[f64]) -> bool {
    values.iter().all(|v| v.is_finite() && *v >= 0.0)
}

proptest! {
    #[test]
    fn throughput_grows_with_connections(model in any_model(), shape in any_shape()) {
        let here = model.throughput(shape).per_s;
        prop_assert!(here > 0.0 && sound(&[here]));
        if let Some(more) = Shape::new(shape.connections() + 1, shape.max_batch()) {
            prop_assert!(model.throughput(more).per_s >= here);
        }
        // With a fixed part that is not negative, larger batches never carry less.
        if let Some(larger) = Shape::new(shape.connections(), shape.max_batch() + 1) {
            prop_assert!(model.throughput(larger).per_s >= here * (1.0 - 1e-12));
        }
    }

    #[test]
    fn throughput_is_the_least_of_its_bounds(model in any_model(), shape in any_shape()) {
        let peak = model.throughput(shape).per_s * (1.0 - 1e-9);
        let rows = f64::from(shape.max_batch());
        let parameters = model.parameters();
        let at_once = f64::from(shape.connections()) * rows;
        prop_assert!(peak <= at_once * 1e6 / model.response_us(rows));
        prop_assert!(peak <= f64::from(parameters.db_cores) * rows * 1e6 / parameters.batch.time_us(rows));
        if let Some(us) = parameters.cpu_per_call_us {
            prop_assert!(peak <= 1e6 / us);
        }
    }

    #[test]
    fn closed_forms_are_sound(
        model in any_model(), shape in any_shape(), rate in 0.0..1e8f64, wait in 0.0..MAX_TIME_US,
    ) {
        let rows = model.adaptive_rows(shape, rate);
        prop_assert!((1.0..=f64::from(shape.max_batch())).contains(&rows));
        let fixed = Model::fixed_wait_us(shape.max_batch(), wait, rate);
        prop_assert!(fixed <= wait && sound(&[fixed, model.adaptive_wait_us(shape, rate)]));
        let (out, back) = model.kbit_per_s(rate, rows);
        prop_assert!(sound(&[out, back]));
    }

    #[test]
    fn more_load_makes_no_smaller_batches(model in any_model(), shape in any_shape(), rate in 1.0..1e6f64) {
        prop_assert!(model.adaptive_rows(shape, rate * 1.5) >= model.adaptive_rows(shape, rate));
    }

    #[test]
    fn simulations_are_sound(
        model in any_model(),
        shape in any_shape(),
        offered_per_s in prop_oneof![0.0..1e6f64, Just(f64::NAN), Just(f64::INFINITY)],
        mode in prop_oneof![
            Just(Mode::Single),
            Just(Mode::Adaptive),
            (0.0..1e6f64).prop_map(|max_wait_us| Mode::Fixed { max_wait_us }),
            Just(Mode::Fixed { max_wait_us: f64::NAN }),
            (0.0..1e6f64).prop_map(|max_gap_us| Mode::Spaced { max_gap_us }),
        ],
        seed: u64,
    ) {
        let point = at_load(&model, shape, Run { mode, offered_per_s, arrivals: 0, seed });
        let o = point.outcome;
        prop_assert!(sound(&[
            o.offered_per_s, o.carried_per_s, o.mean_wait_us, o.p99_wait_us, o.mean_response_us, o.mean_rows,
            point.out_kbit_per_s, point.back_kbit_per_s,
        ]));
        prop_assert!(o.mean_rows >= 1.0 && o.mean_rows <= f64::from(shape.max_batch()));
        prop_assert!(o.carried_per_s <= o.offered_per_s.max(model.throughput(shape).per_s));
    }

    #[test]
    fn a_plan_carries_its_target_at_least_bandwidth(
        model in any_model(),
        target_per_s in 1.0..1e5f64,
        headroom in 1.0..3.0f64,
        max_connections in 1..64u32,
        max_batch in 1..300u32,
    ) {
        let goal = Goal { target_per_s, headroom, max_connections, max_batch };
        let all = powers_of_two(max_batch)
            .flat_map(|b| (1..=max_connections).map(move |p| shape(p, b)))
            .map(|shape| candidate(&model, shape, target_per_s));
        let carries = |c: &Candidate| c.peak.per_s >= target_per_s * headroom;
        match search(&model, &goal) {
            Ok(plan) => {
                prop_assert!(carries(&plan.choice));
                for other in all.filter(carries) {
                    prop_assert!(plan.choice.kbit_per_s() <= other.kbit_per_s() * (1.0 + TIE + 1e-9));
                }
                for pair in plan.alternatives.windows(2) {
                    prop_assert!(pair[0].shape.max_batch() < pair[1].shape.max_batch());
                }
                for alternative in &plan.alternatives {
                    prop_assert!(carries(alternative));
                    if let Some(fewer) =
                        Shape::new(alternative.shape.connections() - 1, alternative.shape.max_batch())
                    {
                        prop_assert!(!carries(&candidate(&model, fewer, target_per_s)));
                    }
                }
            }
            Err(unreachable) => {
                for other in all {
                    prop_assert!(!carries(&other) && other.peak.per_s <= unreachable.best.peak.per_s);
                }
            }
        }
    }
}

#[test]
fn goals_out_of_range_are_held_within() {
    let model = model(30_000.0, 200.0, 8.0, 1);
    let goal = Goal {
        target_per_s: f64::NAN,
        headroom: f64::NEG_INFINITY,
        max_connections: 0,
        max_batch: 0,
    };
    let plan = search(&model, &goal).expect("next to nothing is asked for");
    assert_eq!(plan.choice.shape, shape(1, 1));
    assert!(plan.choice.peak.per_s >= RATES.0);
}

#[test]
fn parameters_out_of_range_are_named() {
    let good = *model(30_000.0, 200.0, 8.0, 1).parameters();
    let long = Line::new(1e9, 0.0).expect("in range");
    for (bad, name) in [
        (Parameters { rtt_us: -1.0, ..good }, "round trip"),
        (
            Parameters {
                rtt_us: f64::NAN,
                ..good
            },
            "round trip",
        ),
        (
            Parameters {
                batch: BatchCost::new(long),
                ..good
            },
            "time for a batch",
        ),
        (Parameters { db_cores: 0, ..good }, "cores"),
        (
            Parameters {
                db_cpu: Some(long),
                ..good
            },
            "database's CPU",
        ),
        (
            Parameters {
                cpu_per_call_us: Some(0.0),
                ..good
            },
            "proxy's CPU",
        ),
    ] {
        let error = Model::new(bad).expect_err("out of range").to_string();
        assert!(error.contains(name), "{error}");
    }
    assert!(Shape::new(0, 1).is_none() && Shape::new(1, MAX_BATCH + 1).is_none());
}
