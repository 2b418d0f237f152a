//! `latchgate status`: one screen.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use latchgate_client::Method;
use latchgate_core::key::ALL_APPS;
use latchgate_node::format::ms;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::engines::{show_engines, wrong_with};
use super::node::client;
use super::operations::{PAGES_MAX, UNDECIDED_STATES, in_states, is_undecided, since};
use super::print::{counted, one_line, println_or_exit, text, when};
use crate::config::ShowArgs;

const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The requests of which time a status shows.
const LATELY: Duration = Duration::from_secs(5 * 60);
/// How many items of a kind a status shows.
const STATUS_LINES: usize = 5;

/// One screen: what is wrong, what a person must decide, and what soon ends.
///
/// # Errors
/// As [`super::locks::locks`]; and if something is wrong, or a part cannot be read.
pub async fn status(show: &ShowArgs) -> anyhow::Result<()> {
    let client = client(&show.node)?;
    let engines = client.call(Method::GET, "/v1/admin/engines", None).await?;
    // First: a store that does not answer keeps the rest from being read.
    if !show.json {
        show_engines(false, &engines);
    }
    let mut wrong = wrong_with(&engines);
    let all = client.clone().in_app(Some(ALL_APPS));
    let (undecided, keys, samples) = tokio::join!(
        in_states(&all, &UNDECIDED_STATES, "", is_undecided, PAGES_MAX),
        client.call(Method::GET, "/v1/admin/api-keys", None),
        all.call(Method::GET, "/metrics/samples", None),
    );
    let undecided = undecided.inspect_err(|error| wrong.push(format!("operations cannot be read: {error}"))).ok();
    let keys = keys.inspect_err(|error| wrong.push(format!("API keys cannot be read: {error}"))).ok();
    let now = OffsetDateTime::now_utc();
    let expiring = keys.map(|keys| {
        let mut expiring = keys["api_keys"].as_array().cloned().unwrap_or_default();
        expiring.retain(|key| {
            let at = key["expires_at"].as_str().and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
            // One that has just expired is why requests are refused now.
            key["state"] != "revoked" && at.is_some_and(|at| (at - now).unsigned_abs() < EXPIRES_SOON)
        });
        expiring.sort_by_key(|key| text(&key["expires_at"]));
        expiring
    });
    // They need a scope that the API key may lack.
    let refused = refused_lately(&samples.unwrap_or_default());
    if show.json {
        println_or_exit(json!({
            "wrong": wrong,
            "engines": engines,
            "undecided": undecided.as_ref().map(|(operations, _)| operations),
            "undecided_incomplete": undecided.as_ref().is_none_or(|(_, is_all)| !is_all),
            "api_keys_expiring": expiring,
            "refused": refused,
        }));
    } else {
        if let Some((operations, is_all)) = &undecided {
            let count = counted(&operations.len().into(), "operation");
            let count = if *is_all { count } else { format!("at least {count}") };
            show_first(&format!("{count} to decide"), operations, |operation| {
                let (at, name) = (when(&json!(since(operation))), one_line(&operation["operation"]));
                let (id, app) = (text(&operation["id"]), quoted(&one_line(&operation["app"])));
                format!("{at}: {name}: latchgate operations show {id} --app {app}")
            });
        }
        if let Some(keys) = &expiring {
            let count = counted(&keys.len().into(), "API key");
            show_first(&format!("{count} to expire within a week, or just expired"), keys, |key| {
                let name = one_line(&key["name"]);
                let name = if name.is_empty() { name } else { format!(", {name}") };
                let (at, id, app) = (when(&key["expires_at"]), text(&key["id"]), one_line(&key["app"]));
                format!("{at}: {id} of {app}{name}, {}", text(&key["state"]))
            });
        }
        let codes: Vec<String> = refused.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        let codes = if codes.is_empty() { "none".to_owned() } else { codes.join(", ") };
        println_or_exit(format_args!("requests that this node has refused in the last minutes: {codes}"));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// How many there are, and the first of them.
fn show_first(count: &str, items: &[Value], line: impl Fn(&Value) -> String) {
    let is_cut = items.len() > STATUS_LINES;
    let cut = if is_cut { format!(", {STATUS_LINES} of {} shown", items.len()) } else { String::new() };
    println_or_exit(format_args!("{count}{cut}"));
    items.iter().take(STATUS_LINES).for_each(|item| println_or_exit(format_args!("  {}", line(item))));
}

/// An argument as a shell reads it.
fn quoted(argument: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
    if argument.bytes().all(is_plain) { argument.to_owned() } else { format!("'{}'", argument.replace('\'', r"'\''")) }
}

/// How many requests the node has refused in the last minutes, by the status of the answer. Answers that refuse nothing, such as 304, are
/// counted as `other`.
fn refused_lately(samples: &Value) -> BTreeMap<String, i64> {
    let ages = samples["ages_ms"].as_array().map(Vec::as_slice).unwrap_or_default();
    let first = ages.iter().position(|age| age.as_u64().is_some_and(|age| age <= ms(LATELY))).unwrap_or(0);
    let of_series = |(name, values): (&String, &Value)| {
        let code = name.strip_prefix("latchgate_requests_total{code=\"")?.strip_suffix("\"}")?;
        let values = values.as_array()?;
        let count = values.last()?.as_i64()? - values.get(first)?.as_i64()?;
        (code.parse::<u16>().is_ok_and(|code| code >= 400) && count > 0).then(|| (code.to_owned(), count))
    };
    samples["series"].as_object().into_iter().flatten().filter_map(of_series).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn a_status_counts_refusals_of_the_last_minutes_and_nothing_else() {
        let series =
            |code: &str, counts: [i64; 4]| (format!("latchgate_requests_total{{code=\"{code}\"}}"), json!(counts));
        let series: Map<String, Value> = [
            series("423", [1, 2, 2, 9]),
            // Nothing new for a page that asks again.
            series("304", [0, 5, 9, 20]),
            series("200", [0, 5, 9, 20]),
            series("503", [4, 4, 4, 4]),
            series("429", [7, 7, 7, 8]),
            series("other", [0, 0, 1, 2]),
            ("latchgate_waiters".to_owned(), json!([0, 1, 2, 3])),
        ]
        .into_iter()
        .collect();
        let samples = json!({ "ages_ms": [900_000, 300_000, 10_000, 0], "series": series });
        let counts = BTreeMap::from([("423".to_owned(), 7), ("429".to_owned(), 1)]);
        assert_eq!(refused_lately(&samples), counts);
        assert_eq!(refused_lately(&Value::Null), BTreeMap::new());
    }
}
