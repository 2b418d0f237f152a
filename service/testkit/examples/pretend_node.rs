//! Stands in for the `latchgate` binary in the tests of [`latchgate_testkit::node`]: it is ready at once, or ends with
//! status 2 if it gets `--refuse`.

use std::io::{Read, Write};
use std::net::TcpListener;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--refuse") {
        eprintln!("refused as requested");
        std::process::exit(2);
    }
    let Some([_, _, listen]) = args.first_chunk::<3>() else { panic!("serve --listen ADDRESS") };
    let listener = TcpListener::bind(listen).expect("another process already listens there");
    println!("listening");
    for mut stream in listener.incoming().flatten() {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    }
}
