//! Tells the report which compiler it was built with.

use std::{env, process::Command};

fn main() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!(
        "cargo::rustc-env=DISTLOCK_BENCH_RUSTC={}",
        version.unwrap_or_default()
    );
    println!("cargo::rerun-if-changed=build.rs");
}
