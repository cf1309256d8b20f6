//! Takes the authority out of requests before the HTTP/2 library reads them.
//!
//! A gRPC client that dials a Unix socket by its path sends the path as `:authority`: NVIDIA's device
//! plugin as it is up to 0.14.2 (`/var/lib/kubelet/device-plugins/kubelet.sock`), and percent-encoded
//! from 0.14.3 on, as gRPC's C++ core and with it Python's client do. RFC 3986 forbids the first form,
//! and the `http` crate refuses both, so h2 resets the stream before any handler sees the request,
//! and has no switch for it. The authority of a Unix socket has no meaning, so these sockets leave it
//! out. This module can go when h2 accepts such requests: <https://github.com/hyperium/h2/pull/487>.

use std::io::{self, Cursor};

use futures::StreamExt;
use loona_hpack::{Decoder, Encoder};
use prost::bytes::{BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::UnixStream,
};
use tokio_util::{
    codec::{FramedRead, LengthDelimitedCodec},
    io::StreamReader,
};

/// What each connection of HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, type, flags and stream of a frame.
const HEAD: usize = 9;
/// The largest content of a frame: both sides' default, which nothing here changes.
const MOST_FRAME: usize = 16_384;
/// The most bytes of a request's header fields as they come. A call of a device plugin has 200.
const MOST_PACKED: usize = 8_192;
/// The most bytes of them unpacked: hyper's limit.
const MOST_FIELDS: usize = 16_384;
/// The most bytes of earlier header fields that a peer may refer to: the default, which hyper keeps.
const MOST_TABLE: usize = 4_096;

/// Types of frames.
const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
/// Flags of `HEADERS` and `CONTINUATION`.
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Returns the connection with requests that have no authority.
///
/// # Errors
/// When the peer does not begin with HTTP/2's preface, or hangs up.
pub(super) async fn without(
    mut stream: UnixStream,
) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if preface != *PREFACE {
        return Err(malformed("the peer does not speak HTTP/2"));
    }
    let (read, write) = stream.into_split();
    let frames = LengthDelimitedCodec::builder()
        .length_field_length(3)
        .length_adjustment(HEAD as isize)
        .num_skip(0)
        .max_frame_length(MOST_FRAME)
        .new_codec();
    let mut requests = Requests::default();
    let frames = FramedRead::new(read, frames).map(move |frame| requests.pass(frame?));
    let read = Cursor::new(preface).chain(StreamReader::new(frames));
    Ok(tokio::io::join(read, write))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Follows the requests of a connection. Header fields are compressed in terms of earlier ones, so
/// all of them are read and written anew.
struct Requests {
    decoder: Decoder<'static>,
    encoder: Encoder<'static>,
    /// The header fields of which a part is yet to come.
    open: Option<Block>,
}

/// The header fields of a request.
struct Block {
    stream: [u8; 4],
    end_stream: u8,
    packed: BytesMut,
}

impl Default for Requests {
    fn default() -> Self {
        let mut decoder = Decoder::default();
        decoder.set_max_allowed_table_size(MOST_TABLE);
        Self {
            decoder,
            encoder: Encoder::default(),
            open: None,
        }
    }
}

impl Requests {
    /// Returns what takes the place of a frame: nothing until the last part of header fields.
    fn pass(&mut self, mut frame: BytesMut) -> io::Result<Bytes> {
        let mut head = [0; HEAD];
        head.copy_from_slice(
            frame
                .get(..HEAD)
                .ok_or_else(|| malformed("a short frame"))?,
        );
        let [_, _, _, kind, flags, stream @ ..] = head;
        let mut block = match (kind, self.open.take()) {
            (HEADERS, None) => Block {
                stream,
                end_stream: flags & END_STREAM,
                packed: fragment(frame.split_off(HEAD), flags)?,
            },
            (CONTINUATION, Some(mut block)) if block.stream == stream => {
                block.packed.put_slice(&frame[HEAD..]);
                block
            }
            (_, None) => return Ok(frame.freeze()),
            (_, Some(_)) => return Err(malformed("a frame between header fields")),
        };
        if block.packed.len() > MOST_PACKED {
            return Err(malformed("too many header fields"));
        }
        if flags & END_HEADERS == 0 {
            self.open = Some(block);
            return Ok(Bytes::new());
        }
        block.packed = self.repack(&block.packed)?;
        Ok(block.frames())
    }

    /// Returns header fields without the authority.
    fn repack(&mut self, packed: &[u8]) -> io::Result<BytesMut> {
        let mut fields = Vec::new();
        let mut bytes = 0;
        let unpacked = self.decoder.decode_with_cb(packed, |name, value| {
            bytes += name.len() + value.len();
            if bytes <= MOST_FIELDS && *name != *b":authority" {
                fields.push((name.into_owned(), value.into_owned()));
            }
        });
        unpacked.map_err(|error| malformed(&format!("header fields: {error:?}")))?;
        if bytes > MOST_FIELDS {
            return Err(malformed("too many header fields"));
        }
        let fields = fields.iter().map(|(name, value)| (&**name, &**value));
        Ok(BytesMut::from(&*self.encoder.encode(fields)))
    }
}

/// Returns the part of header fields in the content of a `HEADERS` frame.
fn fragment(mut content: BytesMut, flags: u8) -> io::Result<BytesMut> {
    let short = || malformed("a short frame of header fields");
    let mut take = |count: usize| -> io::Result<BytesMut> {
        let enough = content.len() >= count;
        enough.then(|| content.split_to(count)).ok_or_else(short)
    };
    let padding = match flags & PADDED {
        0 => 0,
        _ => usize::from(take(1)?[0]),
    };
    if flags & PRIORITY != 0 {
        take(5)?;
    }
    let length = content.len().checked_sub(padding).ok_or_else(short)?;
    content.truncate(length);
    Ok(content)
}

impl Block {
    fn frames(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.packed.len() + HEAD);
        let mut rest = &self.packed[..];
        let (mut kind, mut flags) = (HEADERS, self.end_stream);
        // A block without fields is a frame, too: it may end the stream.
        loop {
            let (part, more) = rest.split_at(rest.len().min(MOST_FRAME));
            if more.is_empty() {
                flags |= END_HEADERS;
            }
            out.put_uint(part.len() as u64, 3);
            out.put_u8(kind);
            out.put_u8(flags);
            out.put_slice(&self.stream);
            out.put_slice(part);
            if more.is_empty() {
                break;
            }
            (rest, kind, flags) = (more, CONTINUATION, 0);
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn frame(kind: u8, flags: u8, stream: u8, content: &[u8]) -> BytesMut {
        let mut frame = BytesMut::new();
        frame.put_uint(content.len() as u64, 3);
        frame.put_slice(&[kind, flags, 0, 0, 0, stream]);
        frame.put_slice(content);
        frame
    }

    fn fields(authority: &str, path: &str) -> Fields {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
        ];
        let owned = |text: &str| text.as_bytes().to_vec();
        fields
            .map(|(name, value)| (owned(name), owned(value)))
            .into()
    }

    fn pack(encoder: &mut Encoder<'_>, fields: &Fields) -> Vec<u8> {
        encoder.encode(fields.iter().map(|(name, value)| (&**name, &**value)))
    }

    /// Returns flags and fields of the `HEADERS` frames, with their continuations.
    fn read(frames: &Bytes, decoder: &mut Decoder<'_>) -> (u8, Fields) {
        let (mut rest, mut packed, mut flags) = (&frames[..], Vec::new(), 0);
        while !rest.is_empty() {
            let length =
                usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
            assert!(length <= MOST_FRAME);
            assert_eq!(
                rest[3],
                if packed.is_empty() {
                    HEADERS
                } else {
                    CONTINUATION
                }
            );
            flags |= rest[4];
            packed.extend(&rest[HEAD..HEAD + length]);
            rest = &rest[HEAD + length..];
        }
        (flags, decoder.decode(&packed).unwrap())
    }

    #[test]
    fn each_request_of_a_connection_loses_its_authority_and_nothing_else() {
        let (mut requests, mut client) = (Requests::default(), Encoder::new());
        let mut server = Decoder::new();
        for (number, authority) in ["/a/kubelet.sock", "%2Fa", "/a/kubelet.sock"]
            .into_iter()
            .enumerate()
        {
            let mut sent = fields(authority, "/v1beta1.Registration/Register");
            let packed = pack(&mut client, &sent);
            // Padded, with a priority, and in two parts.
            let (first, second) = packed.split_at(packed.len() / 2);
            let padded = [&[3, 0, 0, 0, 0, 16], first, &[0; 3]].concat();
            let flags = PADDED | PRIORITY | END_STREAM;
            let nothing = requests.pass(frame(HEADERS, flags, 1, &padded)).unwrap();
            assert!(nothing.is_empty());
            let frames = requests
                .pass(frame(CONTINUATION, END_HEADERS, 1, second))
                .unwrap();
            let (flags, got) = read(&frames, &mut server);
            assert_eq!(flags, END_HEADERS | END_STREAM, "{number}");
            sent.retain(|(name, _)| name != b":authority");
            assert_eq!(got, sent);
            // Trailers without fields end the stream.
            let end = END_STREAM | END_HEADERS;
            let trailers = frame(HEADERS, end, 1, &[]);
            assert_eq!(requests.pass(trailers.clone()).unwrap(), trailers.freeze());
            // Other frames pass as they are.
            let data = frame(0, END_STREAM, 1, b"message");
            assert_eq!(requests.pass(data.clone()).unwrap(), data.freeze());
        }
    }

    #[test]
    fn a_connection_ends_with_fields_that_are_too_many_or_broken() {
        let long = "x".repeat(MOST_FIELDS);
        let packed = pack(&mut Encoder::new(), &fields("a", &long));
        let mut requests = Requests::default();
        let mut parts = packed.chunks(4_096);
        let first = frame(HEADERS, 0, 1, parts.next().unwrap());
        assert!(requests.pass(first).unwrap().is_empty());
        let rest: Vec<_> = parts
            .map(|part| requests.pass(frame(CONTINUATION, 0, 1, part)).is_err())
            .collect();
        assert!(rest.contains(&true));

        let pass = |frame| {
            Requests::default()
                .pass(frame)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert!(pass(frame(HEADERS, PADDED | END_HEADERS, 1, &[9, 0])).is_err());
        assert!(pass(frame(HEADERS, END_HEADERS, 1, &[0xff; 8])).is_err());
        assert!(pass(BytesMut::from(&b"short"[..])).is_err());
        // A table of a megabyte.
        assert!(
            pass(frame(
                HEADERS,
                END_HEADERS,
                1,
                &[0x3f, 0xe1, 0xff, 0x3f, 0x82]
            ))
            .is_err()
        );
        let mut requests = Requests::default();
        requests.pass(frame(HEADERS, 0, 1, &[])).unwrap();
        assert!(
            requests
                .pass(frame(CONTINUATION, END_HEADERS, 3, &[]))
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(frames in prop::collection::vec(
            (0_u8..10, any::<u8>(), prop::collection::vec(any::<u8>(), 0..64)), 0..8,
        )) {
            let mut requests = Requests::default();
            for (kind, flags, content) in frames {
                if requests.pass(frame(kind, flags, 1, &content)).is_err() {
                    break;
                }
            }
        }
    }
}
