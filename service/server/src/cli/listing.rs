//! Lists of a node, read page by page, and how they are shown.

use latchgate_client::{Client, Error, Method, encode};
use latchgate_core::key::ALL_APPS;
use serde_json::Value;

use super::print::{list, one_line, text};

pub const PAGE: u32 = 1_000;

/// A list, with the apps in front if it is that of all apps.
pub fn list_of(
    is_json: bool,
    app: Option<&str>,
    what: &str,
    items: &[Value],
    columns: &[&str],
    cells: impl Fn(&Value) -> Vec<String>,
) {
    if app != Some(ALL_APPS) {
        return list(is_json, what, items, columns, cells);
    }
    let columns = [&["APP"], columns].concat();
    list(is_json, what, items, &columns, |item| [vec![one_line(&item["app"])], cells(item)].concat());
}

/// All pages of a list.
pub async fn pages(client: &Client, path: &str, name: &str) -> Result<Vec<Value>, Error> {
    Ok(kept(client, path, name, |_| true, usize::MAX, usize::MAX).await?.0)
}

/// What is kept of the pages of a list, until there is `enough` of it or `pages_max` pages are read; and whether these were all pages.
pub async fn kept(
    client: &Client,
    path: &str,
    name: &str,
    is_kept: impl Fn(&Value) -> bool,
    enough: usize,
    pages_max: usize,
) -> Result<(Vec<Value>, bool), Error> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    for _ in 0..pages_max {
        let mut answer = client.call(Method::GET, &format!("{path}{cursor}"), None).await?;
        if let Some(Value::Array(page)) = answer.get_mut(name).map(Value::take) {
            items.extend(page.into_iter().filter(&is_kept));
        }
        match answer["next_cursor"].as_str() {
            None => return Ok((items, true)),
            Some(_) if items.len() >= enough => break,
            Some(next) => cursor = format!("&cursor={}", encode(next)),
        }
    }
    Ok((items, false))
}

/// For people: in which app nothing `was_found`, if an operator has named none.
pub async fn in_own_app(client: &Client, app: Option<&str>, is_json: bool, was_found: bool) -> String {
    let is_told = app.is_none() && !is_json && !was_found;
    let me = if is_told { client.call(Method::GET, "/v1/me", None).await.ok() } else { None };
    let of_operator = me.filter(|me| me["operator"] == true && me["api_key_id"].is_string());
    of_operator.map(|me| format!(" in the app {} (--app names another one)", text(&me["app"]))).unwrap_or_default()
}
