//! The ports that every function of the stack has, and stand-ins for those it has no right to.

use std::sync::Arc;

use async_trait::async_trait;
use tailstep_core::{
    ids::SessionKey,
    model::{FailureKind, ModelAnswer, ModelFailure, ModelRequest, Usage},
};
use tailstep_runtime::ports::{Hands, HandsError, Model, ToolOrder, ToolReply};

use crate::{
    blobs::S3Blobs,
    clients::Clients,
    config::{Config, ConfigError, HandsConfig},
    documents::DynamoDocuments,
    hands::LambdaHands,
    log::DynamoLog,
    microvm::{MicroVmConfig, MicroVmHands},
    queue::SqsQueue,
};

/// The stores and the queue of one stack.
#[derive(Clone)]
pub struct Ports {
    pub log: Arc<DynamoLog>,
    pub documents: Arc<DynamoDocuments>,
    pub blobs: Arc<S3Blobs>,
    pub queue: Arc<SqsQueue>,
}

impl Ports {
    pub fn new(clients: &Clients, config: &Config) -> Self {
        let store = &config.store;
        let blobs = Arc::new(S3Blobs::new(clients.s3.clone(), &store.blobs_bucket));
        let log = DynamoLog::new(clients.dynamodb.clone(), &store.log_table, blobs.clone());
        let documents = DynamoDocuments::new(clients.dynamodb.clone(), &store.config_table);
        Self {
            log: Arc::new(log),
            documents: Arc::new(documents),
            blobs,
            queue: Arc::new(SqsQueue::new(clients, config.wake.clone())),
        }
    }

    /// What runs the tools.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] in a function that is not told where.
    pub fn hands(&self, clients: &Clients, config: &Config) -> Result<Arc<dyn Hands>, ConfigError> {
        Ok(match config.hands()? {
            HandsConfig::Lambda(function) => {
                Arc::new(LambdaHands::new(clients.lambda.clone(), function, self.blobs.clone()))
            }
            HandsConfig::MicroVm(machines) => Arc::new(self.microvms(clients, machines)),
        })
    }

    /// What releases sandboxes, in a function that runs no tools.
    pub fn releasing(&self, clients: &Clients, config: &Config) -> Arc<dyn Hands> {
        match self.machines(clients, config) {
            Some(machines) => Arc::new(machines),
            None => Arc::new(NoHands),
        }
    }

    /// The sessions' machines, where tools run in microVMs.
    pub fn machines(&self, clients: &Clients, config: &Config) -> Option<MicroVmHands> {
        config.microvms().map(|machines| self.microvms(clients, machines.clone()))
    }

    fn microvms(&self, clients: &Clients, machines: MicroVmConfig) -> MicroVmHands {
        let (blobs, documents) = (self.blobs.clone(), self.documents.clone());
        MicroVmHands::new(clients.microvms.clone(), machines, blobs, documents)
    }
}

/// In functions that run no tools and have no machines to end. Releasing works: Lambda's sandboxes go
/// by themselves.
#[derive(Debug, Clone, Copy)]
pub struct NoHands;

#[async_trait]
impl Hands for NoHands {
    async fn execute(&self, _order: &ToolOrder) -> Result<ToolReply, HandsError> {
        Err(HandsError::Unavailable { what: "this function runs no tools".to_owned() })
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        Ok(())
    }
}

/// In functions that call no model.
#[derive(Debug, Clone, Copy)]
pub struct NoModel;

#[async_trait]
impl Model for NoModel {
    async fn call(&self, _request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
        Err(ModelFailure {
            kind: FailureKind::Rejected,
            message: "this function calls no model".to_owned(),
            retry_after_ms: None,
            usage: Usage::default(),
        })
    }

    fn check(&self, _model: &str) -> Result<(), String> {
        Err("this function calls no model".to_owned())
    }
}
