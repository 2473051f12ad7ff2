//! Decodes a file of length-prefixed pgoutput messages with two crates, several times, and prints the seconds of
//! processor time for each, which other programs on the machine don't stretch.
//!
//!     cargo run --release -- FILE RUNS
//!
//! Both leave values untyped. pg_walstream can share the file's bytes, so it gets `Bytes`.

use std::error::Error;
use std::hint::black_box;

use bytes::Bytes;
use pg_walstream::{LogicalReplicationMessage, LogicalReplicationParser};
use pgoutput::events::event::{Event, EventType};
use pgoutput::options::{BinaryValueTraitOff, StreamingValueTraitOff};

/// An iterator over each message's start and end.
struct Messages<'a> {
    data: &'a [u8],
    at: usize,
}

impl Iterator for Messages<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let length = self.data.get(self.at..self.at + 4)?;
        let begin = self.at + 4;
        self.at = begin + u32::from_be_bytes(length.try_into().ok()?) as usize;
        Some((begin, self.at))
    }
}

/// The numbers of messages and values.
type Counts = (usize, usize);

fn with_pg_walstream(data: &Bytes) -> Result<Counts, Box<dyn Error>> {
    let mut parser = LogicalReplicationParser::with_protocol_version(1);
    let (mut messages, mut values) = (0, 0);
    for (begin, end) in (Messages { data, at: 0 }) {
        let parsed = parser.parse_wal_message_bytes(data.slice(begin..end))?;
        values += match &parsed.message {
            LogicalReplicationMessage::Insert { tuple, .. } => tuple.column_count(),
            LogicalReplicationMessage::Update { new_tuple, .. } => new_tuple.column_count(),
            LogicalReplicationMessage::Delete { old_tuple, .. } => old_tuple.column_count(),
            _ => 0,
        };
        black_box(parsed);
        messages += 1;
    }
    Ok((messages, values))
}

fn with_pgoutput(data: &Bytes) -> Result<Counts, Box<dyn Error>> {
    let mut messages = 0;
    for (begin, end) in (Messages { data, at: 0 }) {
        let kind = EventType::from_char(data[begin]).ok_or("expected a message type")?;
        let event = Event::<BinaryValueTraitOff, StreamingValueTraitOff>::parse(&kind, &data[begin + 1..end])?;
        black_box(event);
        messages += 1;
    }
    Ok((messages, 0))
}

fn processor_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Sound: the clock exists, and `now` is a valid, exclusive pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let data = Bytes::from(std::fs::read(arguments.next().ok_or("expected FILE")?)?);
    let runs: usize = arguments.next().ok_or("expected RUNS")?.parse()?;
    type Decoder = fn(&Bytes) -> Result<Counts, Box<dyn Error>>;
    let decoders: [(&str, Decoder); 2] = [
        ("Rust: pg_walstream, to structs, untyped", with_pg_walstream),
        ("Rust: pgoutput, to structs, untyped", with_pgoutput),
    ];
    let mut all = Vec::new();
    for (name, decode) in decoders {
        let mut seconds = Vec::new();
        let (mut messages, mut values) = (0, 0);
        for _ in 0..runs {
            let started = processor_seconds();
            (messages, values) = decode(&data)?;
            seconds.push((processor_seconds() - started).to_string());
        }
        let seconds = seconds.join(", ");
        all.push(format!(
            r#"{{"decoder": "{name}", "messages": {messages}, "values": {values}, "seconds": [{seconds}]}}"#
        ));
    }
    println!("[{}]", all.join(", "));
    Ok(())
}
