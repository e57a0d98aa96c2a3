mod paper;
mod properties;
mod waits;

use super::*;

/// A model with this round trip, `t_batch` and cores; nothing else is known.
fn model(rtt_us: f64, fixed_us: f64, per_row_us: f64, db_cores: u32) -> Model {
    let parameters = Parameters {
        rtt_us,
        batch: BatchCost::new(Line::new(fixed_us, per_row_us).expect("in range")),
        db_cores,
        db_cpu: None,
        cpu_per_call_us: None,
        bytes: BytesCost::OF_THE_PAPER,
    };
    Model::new(parameters).expect("in range")
}

fn shape(connections: u32, max_batch: u32) -> Shape {
    Shape::new(connections, max_batch).expect("in range")
}

fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * b.abs()
}
