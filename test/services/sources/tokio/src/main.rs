//! Answers how often each path was asked for, over HTTP/1.1, with tokio's threads.
use std::{collections::HashMap, sync::Arc};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

type Asked = Arc<Mutex<HashMap<String, u64>>>;

async fn serve(stream: TcpStream, asked: Asked) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let mut path = String::new();
    while let Some(line) = lines.next_line().await? {
        if let Some(rest) = line.strip_prefix("GET ") {
            path = rest.split(' ').next().unwrap_or("").to_string();
        }
        if !line.is_empty() {
            continue;
        }
        let n = {
            let mut asked = asked.lock().await;
            let n = asked.entry(path.clone()).or_insert(0);
            *n += 1;
            *n
        };
        let body = format!("{path} {n}\n");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        writer.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let asked = Asked::default();
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let asked = asked.clone();
        tokio::spawn(async move {
            let _ = serve(stream, asked).await; // the client sees what went wrong
        });
    }
}
