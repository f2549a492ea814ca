//! Hands that do nothing: for a server that is to run without sandboxes.

use async_trait::async_trait;
use tailstep_core::ids::SessionKey;
use tailstep_runtime::ports::{Hands, HandsError, ToolOrder, ToolReply};

pub(super) struct NoHands;

#[async_trait]
impl Hands for NoHands {
    async fn execute(&self, _order: &ToolOrder) -> Result<ToolReply, HandsError> {
        let text = "this server runs without sandboxes (--no-hands), so no tool can run";
        Ok(ToolReply { text: text.to_owned(), is_error: true, ..ToolReply::default() })
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        Ok(())
    }
}
