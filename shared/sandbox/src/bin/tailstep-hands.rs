//! The helper that becomes a sandbox. It is started by the library of this crate and speaks its
//! frames on standard input; it is of no use by hand.

use std::process::ExitCode;

fn main() -> ExitCode {
    tailstep_sandbox::hands::main()
}
