//! The ports on AWS: the log and the documents in DynamoDB, wake-ups in SQS (and EventBridge
//! Scheduler for long delays), blobs in S3, model keys in Secrets Manager, hands as a Lambda function or
//! as microVMs.
//!
//! Owns storage keys, item layouts, service limits, timeouts and the one retry layer. Must not know
//! what an event means, nor any HTTP route. Credentials and region come from the environment that
//! Lambda sets; resource names from [`Config::from_env`].

mod batch;
mod blobs;
mod bounded;
mod clients;
mod config;
mod documents;
mod hands;
mod item;
mod log;
mod logs;
mod microvm;
mod queue;
mod secrets;
mod sweep;
mod trouble;
mod wiring;

pub use batch::handle_batch;
pub use blobs::S3Blobs;
pub use clients::{Clients, dynamodb_config, lambda_config};
pub use config::{Config, ConfigError, HandsConfig, LambdaConfig, StoreConfig, WakeConfig};
pub use documents::DynamoDocuments;
pub use hands::{LambdaHands, sandbox_name};
pub use log::DynamoLog;
pub use logs::start_logs;
pub use microvm::{MicroVmConfig, MicroVmHands, Reaped, microvm_config};
pub use queue::SqsQueue;
pub use secrets::SecretsManager;
pub use sweep::sweep_all;
pub use wiring::{NoHands, NoModel, Ports};
