//! `swlimitd explain`: why a request would be granted or denied now.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{header, uri::Authority, Request, StatusCode, Uri};
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{json, Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::config::{duration, Configuration, Origin};
use crate::core::{self, Explanation};
use crate::protocol::explain;
use crate::serve::FatalError;
use crate::service::Live;

/// Timeout of the server or the daemon.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Say why a request would be granted or denied now, without counting it
#[derive(Args, Debug)]
#[command(after_help = "\
Without --daemon it asks the server itself, as --config says. A running daemon knows more: windows of its own \
(mode local, on_failure local), and the configuration in force.

Examples:
  swlimitd explain --method POST --host shop.example --path /login --address 192.0.2.1
  swlimitd explain --domain shop --descriptor tenant=a,user=ann --daemon http://127.0.0.1:8080")]
pub struct Arguments {
    /// Ask a running daemon: http://, https:// or unix:/path/to/socket
    #[arg(long, value_name = "URL")]
    daemon: Option<String>,
    /// A file with a token of the daemon's API in its first line
    #[arg(long, value_name = "FILE", requires = "daemon")]
    token: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The domain of descriptors
    #[arg(long, requires = "descriptor", conflicts_with_all = ["method", "host", "path", "address", "header"])]
    domain: Option<String>,
    /// A descriptor of Envoy's protocol; once for each
    #[arg(long, value_name = "KEY=VALUE,…", requires = "domain")]
    descriptor: Vec<String>,
    /// The hits of the request
    #[arg(long, requires = "domain")]
    hits: Option<u32>,

    /// The method of a request to a proxy
    #[arg(long)]
    method: Option<String>,
    /// The host, with or without a port
    #[arg(long)]
    host: Option<String>,
    /// The path, with or without a query
    #[arg(long)]
    path: Option<String>,
    /// The client's address
    #[arg(long)]
    address: Option<String>,
    /// A header, once for each
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// The body of POST /explain, for requests that the other options cannot describe
    #[arg(long, value_name = "JSON", conflicts_with_all = ["domain", "method", "host", "path", "address", "header"])]
    request: Option<String>,
}

/// Prints the explanation.
pub async fn run(origin: &Origin, arguments: Arguments) -> Result<(), FatalError> {
    let request = arguments.request()?;
    let explanation = match &arguments.daemon {
        Some(daemon) => ask(daemon, arguments.token.as_deref(), &request).await?,
        None => decide(origin, request).await?,
    };
    match arguments.json {
        true => println!("{}", serde_json::to_string_pretty(&explanation)?),
        false => println!("{explanation}"),
    }
    Ok(())
}

impl Arguments {
    fn request(&self) -> Result<Value, FatalError> {
        if let Some(request) = &self.request {
            return serde_json::from_str(request).map_err(|error| format!("--request: {error}").into());
        }
        let pair = |word: &str, separator: char, option: &str| match word.split_once(separator) {
            Some((name, value)) => Ok([name.to_string(), value.to_string()]),
            None => Err(format!("{option}: '{word}' has no '{separator}'")),
        };
        if let Some(domain) = &self.domain {
            let entries = |descriptor: &String| -> Result<Value, String> {
                let pairs = descriptor.split(',').map(|word| pair(word, '=', "--descriptor"));
                let entries = pairs.map(|pair| pair.map(|[key, value]| json!({"key": key, "value": value})));
                Ok(json!({"entries": entries.collect::<Result<Vec<_>, _>>()?}))
            };
            let descriptors = self.descriptor.iter().map(entries).collect::<Result<Vec<_>, _>>()?;
            return Ok(json!({"domain": domain, "descriptors": descriptors, "hitsAddend": self.hits.unwrap_or(0)}));
        }
        let mut fields = Map::new();
        for (name, value) in
            [("method", &self.method), ("host", &self.host), ("path", &self.path), ("address", &self.address)]
        {
            fields.extend(value.clone().map(|value| (name.into(), value.into())));
        }
        if fields.is_empty() {
            return Err("nothing to explain: see swlimitd explain --help".into());
        }
        let mut headers: Map<String, Value> = Map::new();
        for header in &self.header {
            let [name, value] = pair(header, ':', "--header")?;
            let values = headers.entry(name).or_insert_with(|| json!([]));
            values.as_array_mut().expect("it was made one").push(value.trim().into());
        }
        fields.insert("headers".into(), headers.into());
        Ok(fields.into())
    }
}

/// Explains by the configuration, and the server that it names.
async fn decide(origin: &Origin, request: Value) -> Result<Explanation, FatalError> {
    let mut configuration = Configuration::load(origin, None)?;
    configuration.settings.timeout = duration::Duration(TIMEOUT.as_millis() as u64); // it also has to connect
    let client = core::client(&configuration.settings).map_err(|error| format!("{origin}: {error}"))?;
    let live = Live::first(configuration, &client);
    let explained = explain::explain(&live, serde_json::from_value(request)?).await;
    client.close().await;
    explained.map_err(|refusal| refusal.message().into())
}

/// A connection to a daemon.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Asks a running daemon.
async fn ask(daemon: &str, token: Option<&Path>, request: &Value) -> Result<Explanation, FatalError> {
    let token = token.map(std::fs::read_to_string).transpose()?;
    let exchange = async {
        let (stream, host) = connect(daemon).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut asking = Request::post("/explain").header(header::HOST, host);
        asking = asking.header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = token.as_deref().and_then(|text| text.lines().next()) {
            asking = asking.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let reply = sender.send_request(asking.body(Full::new(Bytes::from(request.to_string())))?).await?;
        let status = reply.status();
        Ok::<_, FatalError>((status, reply.into_body().collect().await?.to_bytes()))
    };
    let failed = |error: FatalError| -> FatalError { format!("{daemon}: {error}").into() };
    let (status, body) = match timeout(TIMEOUT, exchange).await {
        Ok(answered) => answered.map_err(failed)?,
        Err(_) => return Err(failed("it does not answer".into())),
    };
    if status == StatusCode::OK {
        return Ok(serde_json::from_slice(&body)?);
    }
    let error: Value = serde_json::from_slice(&body).unwrap_or_default();
    Err(failed(
        format!("status {}: {}", status.as_u16(), error["error"].as_str().unwrap_or("it is not swlimitd")).into(),
    ))
}

/// A connection to the daemon's address, and the host to name.
async fn connect(daemon: &str) -> Result<(Box<dyn Stream>, String), FatalError> {
    if let Some(path) = daemon.strip_prefix("unix:") {
        return Ok((Box::new(UnixStream::connect(path).await?), "localhost".into()));
    }
    let uri: Uri = daemon.parse()?;
    let authority = uri.authority().ok_or("a URL begins with http://, https:// or unix:")?;
    let host = authority.host().trim_matches(['[', ']']).to_string();
    let port = |default| authority.port_u16().unwrap_or(default);
    let stream: Box<dyn Stream> = match uri.scheme_str() {
        Some("https") => {
            let name = ServerName::try_from(host.clone())?;
            let stream = TcpStream::connect((host, port(443))).await?;
            Box::new(TlsConnector::from(Arc::new(tls()?)).connect(name, stream).await?)
        }
        Some("http") => Box::new(TcpStream::connect((host, port(80))).await?),
        _ => return Err("a URL begins with http://, https:// or unix:".into()),
    };
    Ok((stream, Authority::to_string(authority)))
}

/// TLS with the system's certificates, or those of `SSL_CERT_FILE`.
fn tls() -> Result<ClientConfig, FatalError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}
