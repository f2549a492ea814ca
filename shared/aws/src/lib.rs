//! The ports on AWS: the log and the documents in DynamoDB, wake-ups in SQS (and EventBridge
//! Scheduler for long delays), blobs in S3, model keys in Secrets Manager, hands as a Lambda function.
//!
//! Owns storage keys, item layouts, service limits, timeouts and the one retry layer. Must not know
//! what an event means, nor any HTTP route. Credentials and region come from the environment that
//! Lambda sets; resource names from [`Config::from_env`].

mod blobs;
mod clients;
mod config;
mod documents;
mod item;
mod log;
mod queue;
mod secrets;
mod trouble;

pub use blobs::S3Blobs;
pub use clients::{Clients, retries};
pub use config::{Config, ConfigError, HandsConfig, StoreConfig, WakeConfig};
pub use documents::DynamoDocuments;
pub use log::DynamoLog;
pub use queue::{SqsQueue, wake_of};
pub use secrets::SecretsManager;
