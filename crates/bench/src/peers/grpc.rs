//! gRPC, the usual way to call another process: a unary echo by tonic over a Unix socket.
//!
//! The messages are protobuf's own `BytesValue`, which prost implements for `Vec<u8>`, so neither generated code nor a
//! protobuf compiler is needed. Each end runs on one thread, because it has one core.

use std::convert::Infallible;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use http::uri::PathAndQuery;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::child::ChildError;
use super::cores::{CLIENT_CORE, on_core};
use super::laps::Laps;
use super::probe::{ProbeError, Sample};
use super::socket::SocketServer;

type Bytes = Vec<u8>;
type AnyError = Box<dyn Error + Send + Sync>;

/// Makes at least `iterations` calls with `window` in flight.
pub fn run(window: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let failed = |source| ChildError::Run { program: "halite-bench grpc-echo".to_owned(), source };
    let program = std::env::current_exe().map_err(failed)?;
    let server = SocketServer::start(&program, |socket| {
        vec!["grpc-echo".to_owned(), "--socket".to_owned(), socket.display().to_string()]
    })?;
    let measured = on_core(CLIENT_CORE, || runtime()?.block_on(measure(&server.path(), window, iterations)))?;
    measured.map_err(|source| ProbeError::Conversation { peer: "gRPC", source })
}

/// Serves at `socket` until the process is killed.
pub fn serve(socket: &Path) -> Result<(), ProbeError> {
    let served = || runtime()?.block_on(async { echo(UnixListener::bind(socket)?).await });
    served().map_err(|source: AnyError| ProbeError::Conversation { peer: "gRPC", source })
}

async fn echo(listener: UnixListener) -> Result<(), AnyError> {
    // Every call is an echo, because the service has no other method.
    let service = service_fn(|call: http::Request<Body>| async move {
        let echo =
            service_fn(async |bytes: Request<Bytes>| Ok::<_, Status>(Response::new(bytes.into_inner())));
        let codec = ProstCodec::<Bytes, Bytes>::default();
        Ok::<_, Infallible>(tonic::server::Grpc::new(codec).unary(echo, call).await)
    });
    Ok(Server::builder().serve_with_incoming(service, UnixListenerStream::new(listener)).await?)
}

async fn measure(socket: &Path, window: u64, iterations: u64) -> Result<Sample, AnyError> {
    let channel = Endpoint::from_shared(format!("unix:{}", socket.display()))?.connect().await?;
    let mut client = Client { grpc: tonic::client::Grpc::new(channel) };
    // The first call exchanges the connection's settings, so it is not measured.
    client.call().await?;
    if window == 1 {
        call_singly(client, iterations).await
    } else {
        call_in_parallel(client, window, iterations).await
    }
}

async fn call_singly(mut client: Client, iterations: u64) -> Result<Sample, AnyError> {
    let mut laps = Laps::begin(iterations);
    for _ in 0..iterations {
        client.call().await?;
        laps.lap();
    }
    Ok(laps.sample(1))
}

async fn call_in_parallel(client: Client, window: u64, iterations: u64) -> Result<Sample, AnyError> {
    let calls_each = iterations.div_ceil(window);
    let begin = Instant::now();
    let mut callers: JoinSet<Result<(), AnyError>> = JoinSet::new();
    for _ in 0..window {
        callers.spawn(call_repeatedly(client.clone(), calls_each));
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(Sample::of_operations(calls_each * window, begin.elapsed().as_secs_f64()))
}

async fn call_repeatedly(mut client: Client, calls: u64) -> Result<(), AnyError> {
    for _ in 0..calls {
        client.call().await?;
    }
    Ok(())
}

#[derive(Clone)]
struct Client {
    grpc: tonic::client::Grpc<Channel>,
}

impl Client {
    async fn call(&mut self) -> Result<(), AnyError> {
        let input = b"8 octets".to_vec();
        self.grpc.ready().await?;
        let path = PathAndQuery::from_static("/halite.Echo/Echo");
        let codec = ProstCodec::<Bytes, Bytes>::default();
        let reply = self.grpc.unary(Request::new(input.clone()), path, codec).await?.into_inner();
        if reply != input {
            return Err(format!("the server echoed {input:?} as {reply:?}").into());
        }
        Ok(())
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rate of calls to a server on the same thread.
    fn rate(window: u64, iterations: u64) -> Option<f64> {
        let folder = tempfile::tempdir().expect("a temporary directory is created");
        let socket = folder.path().join("socket");
        let runtime = runtime().expect("a runtime is created");
        let sample = runtime.block_on(async {
            tokio::spawn(echo(UnixListener::bind(&socket).expect("the path is free")));
            measure(&socket, window, iterations).await
        });
        sample.expect("every call is echoed").rate_per_s
    }

    #[test]
    fn calls_are_echoed_singly_and_with_many_in_flight() {
        assert!(rate(1, 3).is_some_and(|rate| rate > 0.0));
        assert!(rate(16, 40).is_some_and(|rate| rate > 0.0));
    }

    #[test]
    fn a_missing_server_is_an_error() {
        let runtime = runtime().expect("a runtime is created");
        assert!(runtime.block_on(measure(Path::new("/no/such/socket"), 1, 1)).is_err());
    }
}
