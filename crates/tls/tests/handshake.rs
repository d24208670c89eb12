//! [`ControlStream`] against a server made of rustls alone.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};
use socket2::SockRef;
use xdp_agg_tls::testing::{Authority, Valid};
use xdp_agg_tls::{ClientFiles, ControlStream, OpenError, ServerFiles, Side, explain};

const PATIENCE: Duration = Duration::from_secs(10);

type Accepted = StreamOwned<ServerConnection, TcpStream>;

/// One connection to a server that does `serve`, and what became of it.
fn with_server<T: Send + 'static>(
    server: &ServerFiles,
    client: &ClientFiles,
    serve: impl FnOnce(Accepted) -> T + Send + 'static,
) -> (Result<ControlStream, OpenError>, JoinHandle<T>) {
    let config = server.load().expect("right files").expect("files are named").config();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().expect("a client");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout is possible");
        serve(StreamOwned::new(ServerConnection::new(config).expect("a configuration"), socket))
    });
    let tls = client.load("127.0.0.1").expect("right files").expect("a CA is named");
    let socket = TcpStream::connect(address).expect("it listens");
    SockRef::from(&socket).set_send_buffer_size(1 << 14).expect("it is possible");
    (ControlStream::open(socket, Some(&tls), PATIENCE), thread)
}

fn echo(mut stream: Accepted) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        stream.write_all(&buffer[..len]).expect("the client reads");
    }
}

/// Waits for a failure of the handshake; what the server says of it.
fn fails(mut stream: Accepted) -> String {
    let error = stream.read(&mut [0; 1]).expect_err("the handshake fails");
    // A real server lingers, too, so that its alert is not lost with the connection.
    drop(stream.sock.shutdown(std::net::Shutdown::Write));
    drop(stream.sock.read_to_end(&mut Vec::new()));
    explain(&error, Side::Daemon)
}

#[test]
fn bytes_go_there_and_back_without_blocking() {
    let certificates = Authority::new("ours");
    let server = certificates.issue("127.0.0.1", Valid::Now).server();
    // Reads nothing for a while, so that the client cannot get rid of all that it has.
    let slow = |stream: Accepted| {
        std::thread::sleep(Duration::from_millis(200));
        echo(stream);
    };
    let (stream, thread) = with_server(&server, &certificates.trusting(), slow);
    let mut stream = stream.expect("all is right");
    assert!(stream.is_tls());
    stream.set_nonblocking(true).expect("it is possible");
    let error = stream.read(&mut [0; 1]).expect_err("nothing has come");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let sent: Vec<_> = (0..1_u32 << 19).map(|i| (i % 251) as u8).collect();
    let (mut rest, mut got, mut waited) = (&sent[..], Vec::new(), false);
    let end = Instant::now() + PATIENCE;
    while got.len() < sent.len() {
        assert!(Instant::now() < end, "{} of {} bytes came back", got.len(), sent.len());
        match stream.write(rest) {
            Ok(len) => rest = &rest[len..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        waited |= stream.wants_write();
        drop(stream.flush());
        let mut part = [0; 1 << 14];
        match stream.read(&mut part) {
            Ok(len) => got.extend_from_slice(&part[..len]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
    assert!(got == sent && waited, "the socket was full for a while: {waited}");
    drop(stream);
    thread.join().expect("the server is content");
}

#[test]
fn a_server_that_cannot_be_trusted_is_refused_with_the_reason() {
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let cases = [
        (foreign.issue("127.0.0.1", Valid::Now), "authority in tls-ca", "UnknownCA"),
        (ours.issue("other.example", Valid::Now), "other.example", "BadCertificate"),
        (ours.issue("127.0.0.1", Valid::Past), "has expired", "CertificateExpired"),
        (ours.issue("127.0.0.1", Valid::Future), "not valid yet", "CertificateExpired"),
    ];
    for (identity, words, alert) in cases {
        let (stream, thread) = with_server(&identity.server(), &ours.trusting(), fails);
        match stream {
            Err(OpenError::Refused(text)) => assert!(text.contains(words), "{words}: {text}"),
            other => panic!("{other:?}"),
        }
        let text = thread.join().expect("the server is content");
        assert!(text.contains("does not accept our certificate"), "{text}");
        assert!(text.contains(alert), "{alert}: {text}");
    }
}

#[test]
fn a_client_without_the_right_certificate_learns_why() {
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let server = ours.issue("127.0.0.1", Valid::Now).server();
    let server = ServerFiles { client_ca: Some(ours.ca.clone()), ..server };
    let cases = [
        (ours.trusting(), "asks for a certificate", "showed no certificate"),
        (foreign.issue("worker", Valid::Now).client(&ours.ca), "UnknownCA", "tls-client-ca"),
        (ours.issue("worker", Valid::Past).client(&ours.ca), "CertificateExpired", "expired"),
    ];
    for (client, words, log) in cases {
        let (stream, thread) = with_server(&server, &client, fails);
        // The client's handshake ends before the server has looked at the certificate.
        let mut stream = stream.expect("the server is right");
        let sent = stream.write_all(b"hello");
        let error = sent.and_then(|()| stream.read(&mut [0; 1])).expect_err("it is refused");
        assert!(error.to_string().contains(words), "{words}: {error}");
        drop(stream);
        let text = thread.join().expect("the server is content");
        assert!(text.contains(log), "{log}: {text}");
    }
}

#[test]
fn whatever_does_not_speak_tls_is_told_apart() {
    let certificates = Authority::new("ours");
    let open = |serve: fn(TcpStream), patience| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let thread = std::thread::spawn(move || serve(listener.accept().expect("a client").0));
        let tls = certificates.trusting().load("127.0.0.1").expect("right").expect("named");
        let socket = TcpStream::connect(address).expect("it listens");
        let opened = ControlStream::open(socket, Some(&tls), patience);
        thread.join().expect("the server is content");
        opened
    };
    let plain = |mut socket: TcpStream| {
        socket.write_all(b"\0\0\0\x02{}").expect("the client reads");
        drop(socket.read_to_end(&mut Vec::new()));
    };
    match open(plain, PATIENCE) {
        Err(OpenError::Refused(text)) => assert!(text.contains("does not speak TLS"), "{text}"),
        other => panic!("{other:?}"),
    }
    let gone = |mut socket: TcpStream| drop(socket.read(&mut [0; 4096]));
    match open(gone, PATIENCE) {
        Err(OpenError::Io(error)) => {
            assert!(error.to_string().contains("ended the connection"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let silent = |mut socket: TcpStream| drop(socket.read_to_end(&mut Vec::new()));
    let start = Instant::now();
    match open(silent, Duration::from_millis(200)) {
        Err(OpenError::Io(error)) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}
