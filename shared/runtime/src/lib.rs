//! The order of I/O: how a step, an incoming request and a sweep use the ports.
//!
//! **Architecture invariant:** the runtime knows no service, no vendor, no HTTP and no files. The
//! same [`step`] runs in a Lambda function, in the local process and in the simulator.

pub mod ports;
