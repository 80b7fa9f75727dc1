//! The `relayctl` program. Everything is in the library, so that tests and services use the same code.

use std::process::ExitCode;

fn main() -> ExitCode {
    relayctl::cli::main()
}
