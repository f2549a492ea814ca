//! One sweep of a deployment.

use tailstep_runtime::{
    Runtime,
    error::{RuntimeError, chain},
    sweep::sweep,
};

use crate::microvm::MicroVmHands;

/// Wakes the overdue sessions, and ends the machines of no session where there are machines. Each part
/// is done and logged whatever becomes of the other.
///
/// # Errors
/// That of the first part that failed; the next sweep tries again.
pub async fn sweep_all(
    runtime: &Runtime,
    machines: Option<&MicroVmHands>,
) -> Result<(), RuntimeError> {
    let reap = async {
        match machines {
            Some(machines) => Some(machines.reap().await),
            None => None,
        }
    };
    let (woken, reaped) = tokio::join!(sweep(runtime), reap);
    match &woken {
        Ok(woken) => tracing::info!(woken, "sweep"),
        Err(error) => tracing::error!(error = chain(error), "sweep"),
    }
    match &reaped {
        Some(Ok(reaped)) => tracing::info!(listed = reaped.listed, ended = reaped.ended, "reap"),
        Some(Err(error)) => tracing::error!(error = chain(error), "reap"),
        None => {}
    }
    woken?;
    reaped.transpose()?;
    Ok(())
}
