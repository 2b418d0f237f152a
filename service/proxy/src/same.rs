//! What a repeated request may say otherwise, and is the same request.

use std::borrow::Cow;

/// A host as browsers mean it: `A`, `a.` and `a:80` are `a`.
pub fn host(host: &[u8]) -> Vec<u8> {
    let host = host.trim_ascii().to_ascii_lowercase();
    let name = host.strip_suffix(b":80").or_else(|| host.strip_suffix(b":")).unwrap_or(&host);
    // The dot stands before a port, too.
    let (name, port) = match name.iter().rposition(|byte| *byte == b':') {
        Some(at) if name[at + 1..].iter().all(u8::is_ascii_digit) => name.split_at(at),
        _ => (name, &b""[..]),
    };
    [name.strip_suffix(b".").unwrap_or(name), port].concat()
}

/// The value of `Authorization`: the name of its scheme has no case (RFC 9110, 11.1).
pub fn login(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, credentials) = value.split_at(end);
    [&scheme.to_ascii_lowercase(), &b" "[..], credentials.trim_ascii_start()].concat()
}

/// A path with its query: escapes are one way of writing (RFC 3986, 6.2.2), and an empty query is none.
pub fn target(target: &str) -> String {
    let (target, mut same) = (target.strip_suffix('?').unwrap_or(target), String::with_capacity(target.len()));
    let mut rest = target;
    while let Some(at) = rest.find('%') {
        same.push_str(&rest[..at]);
        rest = &rest[at..];
        let escaped = rest.get(1..3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (text, length) = match escaped.map(char::from) {
            Some(plain) if plain.is_ascii_alphanumeric() || "-._~".contains(plain) => (plain.to_string(), 3),
            Some(_) => (rest[..3].to_ascii_uppercase(), 3),
            None => ("%".to_owned(), 1),
        };
        same.push_str(&text);
        rest = &rest[length..];
    }
    same + rest
}

/// The parts of a body that must be equal, with its type and coding: not the boundary of a form, which is chosen at random, and not the time in
/// the head of a gzip.
pub fn body<'a>(kind: &'a [u8], coding: &'a [u8], body: &'a [u8]) -> Vec<Cow<'a, [u8]>> {
    let coding = coding.trim_ascii().to_ascii_lowercase();
    if coding == b"gzip" || coding == b"x-gzip" {
        let mut body = body.to_vec();
        if body.starts_with(&[0x1f, 0x8b]) && body.len() > 8 {
            body[4..8].fill(0);
        }
        return vec![kind.into(), coding.into(), body.into()];
    }
    let Some((form, boundary)) = boundary(kind) else { return vec![kind.into(), coding.into(), body.into()] };
    // A delimiter begins a line.
    let mut parts: Vec<Cow<'a, [u8]>> = vec![form.into(), coding.into()];
    let (mut begin, mut from) = (0, 0);
    while let Some(at) = find(&body[from..], &boundary).map(|at| from + at) {
        from = at + boundary.len();
        if at == 0 || body[..at].ends_with(b"\n") {
            parts.push(body[begin..at].into());
            begin = from;
        }
    }
    parts.push(body[begin..].into());
    parts
}

/// The type of a form without its boundary, and the delimiter that the boundary makes.
fn boundary(kind: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let text = std::str::from_utf8(kind).ok().filter(|text| text.is_ascii())?;
    let is_form = text.trim_start().get(..10).is_some_and(|start| start.eq_ignore_ascii_case("multipart/"));
    let at = text.to_ascii_lowercase().find("boundary=").filter(|_| is_form)?;
    let value = &text[at + "boundary=".len()..];
    let (value, rest) = match value.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"')?,
        None => value.split_at(value.find(';').unwrap_or(value.len())),
    };
    let value = value.trim();
    let form = [&text[..at], rest].concat().into_bytes();
    (!value.is_empty()).then(|| (form, [b"--", value.as_bytes()].concat()))
}

fn find(body: &[u8], part: &[u8]) -> Option<usize> {
    body.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_however_it_is_written() {
        for same in ["a.example", "A.Example", "a.example:80", "a.example.", "A.EXAMPLE.:80", "a.example:"] {
            assert_eq!(host(same.as_bytes()), b"a.example", "{same}");
        }
        for (one, other) in [("a", "b"), ("a", "a:81"), ("a:80", "a:8080"), ("[::1]", "[::2]"), ("a..", "a")] {
            assert_ne!(host(one.as_bytes()), host(other.as_bytes()), "{one} {other}");
        }
        assert_eq!((host(b"[::1]:80"), host(b"a.:81")), (b"[::1]".to_vec(), b"a:81".to_vec()));
    }

    #[test]
    fn the_scheme_of_a_login_has_no_case_and_the_rest_has() {
        assert_eq!(login(b"bearer Abc"), login(b"Bearer  Abc"));
        assert_eq!(login(b"BASIC YQ=="), login(b"basic YQ== "));
        assert_ne!(login(b"Bearer Abc"), login(b"Bearer abc"));
        assert_ne!(login(b"Bearer abc"), login(b"Basic abc"));
    }

    #[test]
    fn a_target_is_one_however_it_is_escaped() {
        for (one, other) in
            [("/p?", "/p"), ("/%70", "/p"), ("/a%2fb?x=%c3%bc", "/a%2Fb?x=%C3%BC"), ("/%7Eann", "/~ann")]
        {
            assert_eq!(target(one), target(other));
        }
        for (one, other) in [
            ("/a%2Fb", "/a/b"),
            ("/p?a", "/p"),
            ("/p%3Fa", "/p?a"),
            ("/%", "/"),
            ("/%zz", "/%ZZ"),
            ("/P", "/p"),
            ("/%2570", "/%70"),
        ] {
            assert_ne!(target(one), target(other), "{one} {other}");
        }
        assert_eq!(target("/%é%4"), "/%é%4");
    }

    fn form(boundary: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
        let body =
            format!("--{boundary}\r\ncontent-disposition: form-data; name=a\r\n\r\n{value}\r\n--{boundary}--\r\n");
        (format!("multipart/form-data; boundary={boundary}").into_bytes(), body.into_bytes())
    }

    #[test]
    fn a_form_is_one_whatever_its_boundary_is() {
        let parts = |(kind, bytes): &(Vec<u8>, Vec<u8>)| {
            body(kind, b"", bytes).into_iter().map(Cow::into_owned).collect::<Vec<_>>()
        };
        let one = form("----a1", "7");
        assert_eq!(parts(&one), parts(&form("xyz", "7")));
        let quoted = (b"Multipart/form-data; boundary=\"----a1\"".to_vec(), one.1.clone());
        assert_eq!(parts(&quoted)[2..], parts(&one)[2..]);
        assert_ne!(parts(&one), parts(&form("----a1", "8")));
        // Within a line it is text, and another boundary leaves it as it is.
        assert_ne!(parts(&form("b1", "see --b1")), parts(&form("b2", "see --b2")));
        let (kind, bytes) = form("b1", "7");
        assert_ne!(parts(&(b"text/plain; boundary=b1".to_vec(), bytes.clone())), parts(&(kind, bytes)));
    }

    #[test]
    fn a_gzip_is_one_whenever_it_was_made() {
        let gzip = |time: u8, last: u8| [0x1f, 0x8b, 8, 0, time, 0, 0, 0, 0, 3, 1, last].to_vec();
        assert_eq!(body(b"", b"gzip", &gzip(1, 7)), body(b"", b"GZIP", &gzip(2, 7)));
        assert_ne!(body(b"", b"gzip", &gzip(1, 7)), body(b"", b"gzip", &gzip(1, 8)));
        assert_ne!(
            body(b"", b"", &gzip(1, 7)),
            body(b"", b"", &gzip(2, 7)),
            "a file that is uploaded has its own time"
        );
        assert_eq!(body(b"", b"gzip", &[0x1f, 0x8b])[2].len(), 2);
    }
}
