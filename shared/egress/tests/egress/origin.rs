//! Servers for the broker to reach, and the private authority that they have their certificates from.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use crate::world::head;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Authority> = OnceLock::new();
        SHARED.get_or_init(|| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new([]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let root = params.self_signed(&key).unwrap().into();
            Self { issuer: Issuer::new(params, key), root }
        })
    }

    pub(crate) fn root(&self) -> CertificateDer<'static> {
        self.root.clone()
    }

    fn server(&self, name: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new([name.to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &self.issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.into()], key.into())
            .unwrap()
    }
}

/// What an origin does with one request: gives the bytes of its answer, or closes on `None`.
pub(crate) type Behave = Arc<dyn Fn(&str) -> Option<Vec<Vec<u8>>> + Send + Sync>;

/// An HTTP server that keeps what it was sent.
pub(crate) struct Origin {
    pub(crate) port: u16,
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
}

/// An answer with `body`, in one piece.
pub(crate) fn says(body: &str) -> Behave {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    raw(&answer)
}

pub(crate) fn raw(answer: &str) -> Behave {
    let answer = answer.as_bytes().to_vec();
    Arc::new(move |_| Some(vec![answer.clone()]))
}

/// An answer with everything that was asked.
pub(crate) fn echo() -> Behave {
    Arc::new(|asked| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", asked.len());
        Some(vec![head.into_bytes(), asked.as_bytes().to_vec()])
    })
}

impl Origin {
    pub(crate) async fn http(behave: Behave) -> Self {
        Self::start(None, behave).await
    }

    /// With a certificate for `name`.
    pub(crate) async fn https(name: &str, behave: Behave) -> Self {
        let config = Authority::shared().server(name);
        Self::start(Some(TlsAcceptor::from(Arc::new(config))), behave).await
    }

    async fn start(tls: Option<TlsAcceptor>, behave: Behave) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&seen);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (tls, behave, keep) = (tls.clone(), Arc::clone(&behave), Arc::clone(&keep));
                tokio::spawn(async move {
                    match tls {
                        None => talk(socket, &behave, &keep).await,
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                talk(socket, &behave, &keep).await;
                            }
                        }
                    }
                });
            }
        });
        Self { port, seen }
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> String {
        self.seen().pop().unwrap_or_default()
    }
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: S,
    behave: &Behave,
    keep: &Mutex<Vec<String>>,
) {
    loop {
        let mut asked = head(&mut socket).await;
        if !asked.ends_with("\r\n\r\n") {
            return;
        }
        let length = asked.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        if socket.read_exact(&mut body).await.is_err() {
            return;
        }
        while asked.contains("transfer-encoding: chunked") && !body.ends_with(b"0\r\n\r\n") {
            match socket.read_u8().await {
                Ok(byte) => body.push(byte),
                Err(_) => return,
            }
        }
        asked.push_str(&String::from_utf8_lossy(&body));
        keep.lock().unwrap().push(asked.clone());
        let Some(pieces) = behave(&asked) else { return };
        for piece in pieces {
            if socket.write_all(&piece).await.is_err() || socket.flush().await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// A server that sends back every byte.
pub(crate) async fn mirror() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = socket.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    port
}

/// TLS over `stream`, asking for `name`, trusting the root in `pem` (the tests' own when empty).
pub(crate) async fn tls(
    stream: TcpStream,
    name: &str,
    pem: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let root = match pem {
        "" => Authority::shared().root(),
        pem => CertificateDer::from_pem_slice(pem.as_bytes()).unwrap(),
    };
    roots.add(root).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// An address where nobody listens.
pub(crate) async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}
