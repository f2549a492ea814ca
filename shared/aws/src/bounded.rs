//! A limit on the length of answers, for clients whose answers come from where hostile code runs.

use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{Intercept, context::BeforeDeserializationInterceptorContextMut},
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::{body::SdkBody, config_bag::ConfigBag};
use http_body_util::Limited;

/// Ends reading an answer that passes the limit; the call then fails like one whose connection broke.
#[derive(Debug)]
pub(crate) struct Bounded {
    pub(crate) bytes_max: usize,
}

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for Bounded {
    fn name(&self) -> &'static str {
        "bounded answers"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = std::mem::replace(context.response_mut().body_mut(), SdkBody::taken());
        *context.response_mut().body_mut() =
            SdkBody::from_body_1_x(Limited::new(body, self.bytes_max));
        Ok(())
    }
}
