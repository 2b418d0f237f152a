//! The header `traceparent` of W3C Trace Context.

use std::fmt;

use opentelemetry::trace::{SpanContext, TraceState};
use opentelemetry::{SpanId, TraceFlags, TraceId};

/// A trace, and a span in it.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceParent {
    pub trace_id: TraceId,
    span_id: SpanId,
    is_sampled: bool,
}

impl TraceParent {
    /// `None` if the text is not what the recommendation says: then it is as if none had been sent.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let mut field = |digits: usize| {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            fields.next().filter(|field| field.len() == digits && field.bytes().all(is_digit))
        };
        let (version, trace_id, span_id, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        // Later versions may have more fields.
        if version == "ff" || (version == "00" && fields.next().is_some()) {
            return None;
        }
        let trace_id = TraceId::from_hex(trace_id).ok().filter(|id| *id != TraceId::INVALID)?;
        let span_id = SpanId::from_hex(span_id).ok().filter(|id| *id != SpanId::INVALID)?;
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(Self { trace_id, span_id, is_sampled })
    }

    /// `None` if the span is not made.
    pub(super) fn of(context: &SpanContext) -> Option<Self> {
        let (trace_id, span_id, is_sampled) = (context.trace_id(), context.span_id(), context.is_sampled());
        context.is_valid().then_some(Self { trace_id, span_id, is_sampled })
    }

    pub(super) fn context(&self) -> SpanContext {
        let flags = if self.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        SpanContext::new(self.trace_id, self.span_id, flags, true, TraceState::NONE)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, u8::from(self.is_sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_the_recommendation_says() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(TraceParent::parse(good).unwrap().to_string(), good);
        let later = format!("{}-more", good.replacen("00", "cc", 1));
        assert_eq!(TraceParent::parse(&later).unwrap().to_string(), good);
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }
}
