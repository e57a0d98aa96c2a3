//! Sets `cfg(loom)` for this package alone. The files of other crates that the tests include have
//! smaller tables then, and leave their unit tests out; no other package is built a second time.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
