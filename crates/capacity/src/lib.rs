//! Models of what a deployment carries: from what was measured to what will be needed.
//!
//! Pure functions: no clock, no file, no socket; where chance plays a part its seed is an argument. Each model
//! is a module, and says which figures it was checked against.
//!
//! Units stand at the end of names: `_us` microseconds, `_per_s` a second, `_kbit_per_s` 1,000 bits a second.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod batching;
