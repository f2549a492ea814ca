//! A DynamoDB engine inside the test process, behind the real SDK: requests are serialised, signed
//! and parsed as on the wire, and errors come back typed. Faults that no emulator produces are put
//! between the two: throttling, transactions that lose against others, and answers lost after the
//! write was applied.

// Each test file compiles this module for itself and uses a part of it.
#![allow(dead_code)]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use aws_credential_types::Credentials;
use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Region},
    types::{
        AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
        Projection, ProjectionType, ScalarAttributeType,
    },
};
use aws_smithy_http_client::test_util::infallible_client_fn;
use aws_smithy_types::body::SdkBody;
use dynoxide::Database;

pub(crate) const LOG_TABLE: &str = "log";
pub(crate) const CONFIG_TABLE: &str = "config";

/// What happens to one request of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Refused for load; nothing is applied.
    Throttle,
    /// Another transaction touched the same item; nothing is applied.
    TransactionConflict,
    /// Applied, but the answer is lost on its way.
    LoseAnswer,
    /// Refused for missing rights; nothing is applied.
    Deny,
}

/// The engine, with the faults to come and the requests that came.
#[derive(Clone)]
pub(crate) struct Engine {
    database: Arc<Database>,
    faults: Arc<Mutex<VecDeque<(String, Fault)>>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Engine {
    pub(crate) fn start() -> Self {
        Self {
            database: Arc::new(Database::memory().unwrap()),
            faults: Arc::default(),
            calls: Arc::default(),
        }
    }

    /// The next request of `operation` meets `fault`. Several are met one after the other.
    pub(crate) fn inject(&self, operation: &str, fault: Fault) {
        self.faults.lock().unwrap().push_back((operation.to_owned(), fault));
    }

    /// Faults that no request has met.
    pub(crate) fn faults_left(&self) -> usize {
        self.faults.lock().unwrap().len()
    }

    /// Operations requested since the last call of this.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// A client over this engine, with the adapter's own retry settings.
    pub(crate) fn client(&self) -> Client {
        let engine = self.clone();
        let http = infallible_client_fn(move |request: http::Request<SdkBody>| {
            let target = request.headers()["x-amz-target"].to_str().unwrap();
            let operation = target.rsplit('.').next().unwrap().to_owned();
            let (status, body) = engine.answer(&operation, request.body().bytes().unwrap_or(b"{}"));
            http::Response::builder()
                .status(status)
                .header("content-type", "application/x-amz-json-1.0")
                .body(body)
                .unwrap()
        });
        let config = tailstep_aws::dynamodb_config()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "test"))
            .http_client(http)
            .build();
        Client::from_conf(config)
    }

    fn answer(&self, operation: &str, body: &[u8]) -> (u16, String) {
        self.calls.lock().unwrap().push(operation.to_owned());
        match self.next_fault(operation) {
            None => self.apply(operation, body),
            Some(Fault::Throttle) => error(400, "ThrottlingException", ""),
            Some(Fault::Deny) => error(400, "AccessDeniedException", ""),
            Some(Fault::TransactionConflict) => error(
                400,
                "TransactionCanceledException",
                r#","CancellationReasons":[{"Code":"TransactionConflict"},{"Code":"None"}]"#,
            ),
            Some(Fault::LoseAnswer) => {
                self.apply(operation, body);
                error(500, "InternalServerError", "")
            }
        }
    }

    fn next_fault(&self, operation: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let place = faults.iter().position(|(wanted, _)| wanted == operation)?;
        faults.remove(place).map(|(_, fault)| fault)
    }

    fn apply(&self, operation: &str, body: &[u8]) -> (u16, String) {
        macro_rules! call {
            ($method:ident) => {
                serde_json::from_slice(body).map_err(|error| error.to_string()).map(|request| {
                    self.database
                        .$method(request)
                        .map(|answer| serde_json::to_string(&answer).unwrap())
                })
            };
        }
        let outcome = match operation {
            "CreateTable" => call!(create_table),
            "PutItem" => call!(put_item),
            "GetItem" => call!(get_item),
            "UpdateItem" => call!(update_item),
            "DeleteItem" => call!(delete_item),
            "Query" => call!(query),
            "BatchGetItem" => call!(batch_get_item),
            "BatchWriteItem" => call!(batch_write_item),
            "TransactWriteItems" => call!(transact_write_items),
            other => panic!("the adapter is not expected to call {other}"),
        };
        match outcome {
            Ok(Ok(answer)) => (200, answer),
            Ok(Err(refused)) => (refused.status_code(), refused.to_json()),
            Err(malformed) => {
                error(400, "SerializationException", &format!(r#","message":"{malformed}""#))
            }
        }
    }

    /// Both tables, as `template.yaml` has them.
    pub(crate) async fn create_tables(&self) {
        let client = self.client();
        create_table(&client, CONFIG_TABLE, &[]).await;
        let indexes = [("by-tenant", "list_pk", "list_sk"), ("due", "due_pk", "due_ms")];
        create_table(&client, LOG_TABLE, &indexes).await;
        self.calls();
    }
}

/// A table with keys `pk` and `sk` and keys-only indexes (name, hash key, range key).
pub(crate) async fn create_table(client: &Client, name: &str, indexes: &[(&str, &str, &str)]) {
    let attribute = |name: &str| {
        let kind = if name == "due_ms" { ScalarAttributeType::N } else { ScalarAttributeType::S };
        AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build().unwrap()
    };
    let key = |name: &str, kind: KeyType| {
        KeySchemaElement::builder().attribute_name(name).key_type(kind).build().unwrap()
    };
    let mut request = client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(attribute("pk"))
        .attribute_definitions(attribute("sk"))
        .key_schema(key("pk", KeyType::Hash))
        .key_schema(key("sk", KeyType::Range));
    for (index, hash, range) in indexes {
        let keys_only = Projection::builder().projection_type(ProjectionType::KeysOnly).build();
        request = request
            .attribute_definitions(attribute(hash))
            .attribute_definitions(attribute(range))
            .global_secondary_indexes(
                GlobalSecondaryIndex::builder()
                    .index_name(*index)
                    .key_schema(key(hash, KeyType::Hash))
                    .key_schema(key(range, KeyType::Range))
                    .projection(keys_only)
                    .build()
                    .unwrap(),
            );
    }
    request.send().await.unwrap();
}

fn error(status: u16, code: &str, rest: &str) -> (u16, String) {
    (status, format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}"{rest}}}"#))
}
