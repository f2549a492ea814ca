//! The part of S3 that workspaces need: objects of one bucket, copies, presigned requests; and what
//! can go wrong with them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, RawQuery, State},
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tailstep_core::ids::sha256_hex;
use tokio::{net::TcpListener, time::sleep};

/// A kind of request: by its method, and whether it came with a presigned URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By the sandbox function.
    SandboxGet,
    SandboxPut,
    /// By the step.
    Get,
    Put,
    Copy,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Status(u16),
    /// Half of the answer, or of what is put, and the connection is gone.
    Cut,
    /// Half of the answer, and then nothing.
    Stall,
    /// In pieces, slowly.
    Slow,
    /// Other bytes than were stored.
    Other,
    /// Done, and the answer is lost.
    LoseAnswer,
}

#[derive(Default)]
struct Contents {
    objects: BTreeMap<String, Bytes>,
    faults: Vec<(Kind, Fault)>,
    requests: Vec<Kind>,
}

#[derive(Clone)]
pub(crate) struct Bucket {
    address: SocketAddr,
    contents: Arc<Mutex<Contents>>,
}

impl Bucket {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bucket = Self { address: listener.local_addr().unwrap(), contents: Arc::default() };
        let app = Router::new()
            .route("/blobs/{*key}", any(request))
            .layer(axum::extract::DefaultBodyLimit::max(128 << 20))
            .with_state(bucket.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        bucket
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request of `kind` meets `fault`. Several are met one after the other.
    pub(crate) fn inject(&self, kind: Kind, fault: Fault) {
        self.contents.lock().unwrap().faults.push((kind, fault));
    }

    pub(crate) fn pending(&self) -> usize {
        self.contents.lock().unwrap().faults.len()
    }

    /// Requests since the last call of this.
    pub(crate) fn requests(&self) -> Vec<Kind> {
        std::mem::take(&mut self.contents.lock().unwrap().requests)
    }

    /// Objects whose keys begin so.
    pub(crate) fn count(&self, prefix: &str) -> usize {
        let contents = self.contents.lock().unwrap();
        contents.objects.keys().filter(|key| key.starts_with(prefix)).count()
    }

    pub(crate) fn remove(&self, prefix: &str) {
        self.contents.lock().unwrap().objects.retain(|key, _| !key.starts_with(prefix));
    }
}

async fn request(
    State(bucket): State<Bucket>,
    method: Method,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let presigned = query.is_some_and(|query| query.contains("X-Amz-Signature="));
    // S3 refuses a request that is signed in neither way.
    assert!(presigned != headers.contains_key("authorization"), "{method} {key}");
    let copied = headers.get("x-amz-copy-source").map(|source| source.to_str().unwrap());
    let kind = match (method.as_str(), presigned, copied) {
        ("GET", true, None) => Kind::SandboxGet,
        ("PUT", true, None) => Kind::SandboxPut,
        ("GET", false, None) => Kind::Get,
        ("PUT", false, None) => Kind::Put,
        ("PUT", false, Some(_)) => Kind::Copy,
        ("DELETE", false, None) => Kind::Delete,
        other => panic!("no such request is expected: {other:?}"),
    };
    let mut contents = bucket.contents.lock().unwrap();
    contents.requests.push(kind);
    let place = contents.faults.iter().position(|(wanted, _)| *wanted == kind);
    let fault = place.map(|place| contents.faults.remove(place).1);
    if let Some(Fault::Status(status)) = fault {
        return error(status, "Injected");
    }
    match kind {
        Kind::Get | Kind::SandboxGet => match contents.objects.get(&key) {
            Some(object) => sent(object.clone(), fault),
            None => error(404, "NoSuchKey"),
        },
        Kind::Put | Kind::SandboxPut => {
            if fault != Some(Fault::Cut) {
                let other = fault == Some(Fault::Other);
                let object = if other { Bytes::from_static(b"other") } else { body };
                contents.objects.insert(key, object);
            }
            done(fault, String::new())
        }
        Kind::Copy => {
            let source = copied.unwrap().strip_prefix("blobs/").unwrap();
            let Some(object) = contents.objects.get(source).cloned() else {
                return error(404, "NoSuchKey");
            };
            if headers["x-amz-copy-source-if-match"] != etag(&object) {
                return error(412, "PreconditionFailed");
            }
            let answer = format!(
                "<CopyObjectResult><ETag>{}</ETag></CopyObjectResult>",
                etag(&object).replace('"', "&quot;")
            );
            contents.objects.insert(key, object);
            done(fault, answer)
        }
        Kind::Delete => {
            contents.objects.remove(&key);
            done(fault, String::new())
        }
    }
}

fn etag(object: &[u8]) -> String {
    format!("\"{}\"", &sha256_hex(object)[..32])
}

fn error(status: u16, code: &str) -> Response {
    let body = format!("<Error><Code>{code}</Code><Message>injected</Message></Error>");
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

fn done(fault: Option<Fault>, answer: String) -> Response {
    match fault {
        None | Some(Fault::Other) => answer.into_response(),
        Some(Fault::Cut | Fault::LoseAnswer) => {
            let broken = Err::<Bytes, _>(std::io::Error::other("injected"));
            Body::from_stream(stream::iter([broken])).into_response()
        }
        Some(fault) => panic!("no such fault here: {fault:?}"),
    }
}

fn sent(object: Bytes, fault: Option<Fault>) -> Response {
    type Piece = Result<Bytes, std::io::Error>;
    let headers = [("etag", etag(&object)), ("content-length", object.len().to_string())];
    let half = object.slice(..object.len() / 2);
    let body = match fault {
        None => Body::from(object),
        Some(Fault::Cut) => {
            let broken = Err(std::io::Error::other("injected"));
            Body::from_stream(stream::iter([Piece::Ok(half), broken]))
        }
        Some(Fault::Stall) => {
            Body::from_stream(stream::iter([Piece::Ok(half)]).chain(stream::pending()))
        }
        Some(Fault::Slow) => {
            let pieces: Vec<Bytes> = object.chunks(1 << 20).map(Bytes::copy_from_slice).collect();
            Body::from_stream(stream::iter(pieces).then(async |piece| {
                sleep(Duration::from_millis(100)).await;
                Piece::Ok(piece)
            }))
        }
        Some(Fault::Other) => Body::from(vec![b'x'; object.len()]),
        Some(fault) => panic!("no such fault here: {fault:?}"),
    };
    (headers, body).into_response()
}
