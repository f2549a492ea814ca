//! The workspace's way into a machine and out of it.

use bytes::Bytes;
use http::{Method, StatusCode};
use tailstep_core::ids::BlobRef;
use tailstep_runtime::ports::{BlobsError, HandsError, ToolOrder, ToolReply};

use super::{Machine, MicroVmHands, Said, Stored, Transfer, unavailable};
use crate::hands::failed;

/// The largest packed workspace, as the daemon packs it at most.
const ARCHIVE_BYTES_MAX: usize = 100 << 20;
const PATH: &str = "/v1/workspace";

impl MicroVmHands {
    /// Lays the saved workspace out in the machine. A refusal is the call's reply.
    pub(super) async fn lay(
        &self,
        order: &ToolOrder,
        stored: &Stored,
        machine: &Machine,
    ) -> Result<Option<ToolReply>, HandsError> {
        let archive = match &order.workspace {
            None => Bytes::new(),
            Some(blob) => match self.blobs.get(&order.key.tenant, blob).await {
                Ok(archive) => archive,
                Err(error @ (BlobsError::Missing { .. } | BlobsError::Corrupt { .. })) => {
                    tracing::error!(session = %order.key, %error, "workspace is lost");
                    let text = "the saved workspace is lost; the call did not run".to_owned();
                    return Ok(Some(failed(text)));
                }
                Err(error) => return Err(unavailable(&error.to_string())),
            },
        };
        let sha256 = BlobRef::of(&archive).sha256;
        let transfer = Transfer {
            method: Method::PUT,
            path: PATH,
            sha256: Some(&sha256),
            body: archive,
            bytes_max: ARCHIVE_BYTES_MAX,
        };
        match self.transfer(stored, machine, transfer).await? {
            Said::Guest(status, _) if status.is_success() => Ok(None),
            Said::Guest(status, body) => {
                let text = String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
                let text = format!(
                    "the saved workspace cannot be laid out, the call did not run ({status}): {text}"
                );
                Ok(Some(failed(text)))
            }
            Said::Token => Err(unavailable("the endpoint refuses the token")),
            Said::Unreached(what) | Said::Broken(what) => Err(unavailable(&what)),
        }
    }

    /// The workspace that the machine has named; `None` when it is not to be had.
    pub(super) async fn fetch(
        &self,
        stored: &Stored,
        machine: &Machine,
        named: &BlobRef,
    ) -> Result<Option<Bytes>, HandsError> {
        for _ in 0..2 {
            let transfer = Transfer {
                method: Method::GET,
                path: PATH,
                sha256: None,
                body: Bytes::new(),
                bytes_max: ARCHIVE_BYTES_MAX,
            };
            match self.transfer(stored, machine, transfer).await? {
                Said::Guest(StatusCode::OK, archive) if BlobRef::of(&archive) == *named => {
                    return Ok(Some(archive));
                }
                Said::Token => self.forget_token(&machine.id),
                Said::Guest(..) | Said::Unreached(_) | Said::Broken(_) => {}
            }
        }
        Ok(None)
    }
}

/// The workspace as the daemon names it: an empty one has no name there, though it is a blob here, so
/// that a log can say that a workspace was emptied.
pub(super) fn before(order: &ToolOrder) -> Option<&BlobRef> {
    order.workspace.as_ref().filter(|blob| **blob != BlobRef::of(b""))
}
