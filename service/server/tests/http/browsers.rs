//! Web pages in a browser that can reach a node, and names under which a node is served.

use latchgate_testkit::node::Node;
use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::client::{Answer, BIN, embedded, get, granted, http, inspect, release, renew, send};
use crate::connections::on_all_addresses;

fn to(node: &Node, method: Method, path: &str, headers: &[(&str, &str)]) -> RequestBuilder {
    let request = http().request(method, format!("{}{path}", node.base_url()));
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

async fn acquires(node: &Node, headers: &[(&str, &str)]) -> Answer {
    send(to(node, Method::POST, "/v1/locks/k/acquire", headers)).await
}

/// Fails unless each of these is refused with this code, or served if there is none.
async fn acquires_each<'a>(node: &Node, code: &str, each: impl IntoIterator<Item = &'a [(&'a str, &'a str)]>) {
    for headers in each {
        let answer = acquires(node, headers).await;
        if code.is_empty() {
            assert_eq!(answer.status, 200, "{headers:?}: {}", answer.body);
            assert_eq!(release(node, "k", &answer.text("lease_id")).await.status, 200);
        } else {
            answer.assert_problem(403, code);
            assert!(!answer.headers.contains_key("access-control-allow-origin"), "{headers:?}");
        }
    }
}

async fn acquires_under(node: &Node, code: &str, hosts: &[&str]) {
    for host in hosts {
        acquires_each(node, code, [&[("host", *host)][..]]).await;
    }
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing() {
    let node = embedded().await;
    let held = granted(&node, "held", json!({})).await.text("lease_id");
    let own_port = format!("http://localhost:{}", node.port());
    let evil = ("origin", "https://evil.example");
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), evil];
    let foreign: [&[(&str, &str)]; 9] = [
        &link,
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), evil],
        &[("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:3000")],
        &[("sec-fetch-site", "cross-site"), ("origin", "null")],
        // Browsers that send no Sec-Fetch-Site, as to addresses that are neither loopback nor https.
        &[evil],
        &[("origin", "http://127.0.0.1:3000")],
        &[("origin", "null")],
        &[("origin", &own_port)],
        // A name that the page's owner has pointed at this node.
        &[("origin", "http://evil.example"), ("host", "evil.example")],
    ];
    for headers in foreign {
        let code = if headers.last().unwrap().0 == "host" { "foreign-host" } else { "foreign-origin" };
        acquires_each(&node, code, [headers]).await;
        for (method, path) in [
            (Method::POST, "/v1/locks/held/revoke"),
            (Method::PUT, "/v1/locks/held/limit"),
            (Method::DELETE, "/v1/locks/held"),
            (Method::POST, "/v1/operations/pre"),
            (Method::POST, "/v1/admin/hold-off"),
            (Method::GET, "/v1/events"),
        ] {
            if method != Method::GET || headers != link {
                send(to(&node, method, path, headers)).await.assert_problem(403, code);
            }
        }
        if code == "foreign-host" {
            for path in ["/v1/locks/k", "/docs/", "/healthz"] {
                send(to(&node, Method::GET, path, headers)).await.assert_problem(403, code);
            }
        }
    }
    assert_eq!(inspect(&node, "k").await["last_token"], 0);
    assert_eq!(renew(&node, "held", &held).await.body["revocation"], serde_json::Value::Null);
}

#[tokio::test]
async fn own_pages_links_and_programs_are_served() {
    let node = embedded().await;
    let (loopback, localhost) = (node.base_url(), format!("localhost:{}", node.port()));
    let own: [&[(&str, &str)]; 6] = [
        &[],
        &[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors"), ("origin", &loopback)],
        &[("sec-fetch-site", "none")],
        &[("origin", &loopback)],
        &[("host", &localhost), ("origin", &format!("http://{localhost}"))],
        // As some programs do.
        &[("sec-fetch-mode", "cors")],
    ];
    acquires_each(&node, "", own).await;
    acquires_under(&node, "", &["LOCALHOST:1", "node-1:7070", "[fe80::1]", ""]).await;
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    for path in ["/", "/docs/", "/v1/locks/k", "/errors/lock-held"] {
        assert_eq!(send(to(&node, Method::GET, path, &link)).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_node_behind_a_proxy_has_the_names_that_it_is_given() {
    let node = Node::start(BIN, &["--allowed-hosts", "locks.example.com,*.svc.example"]).await;
    acquires_under(&node, "", &["Locks.Example.com:443", "locks.example.com.", "a.b.svc.example", "127.0.0.1"]).await;
    acquires_under(&node, "foreign-host", &["example.com", "x.locks.example.com", "svc.example", "evil.example"]).await;
    // The proxy may keep the name to itself.
    let page = ("origin", "https://locks.example.com");
    acquires_each(&node, "", [&[page][..], &[("host", "locks.example.com"), page]]).await;
    let any = Node::start(BIN, &["--allowed-hosts", "*"]).await;
    acquires_under(&any, "", &["evil.example"]).await;
    for node in [node, any] {
        acquires_each(&node, "foreign-origin", [&[("origin", "https://evil.example")][..]]).await;
    }
}

#[tokio::test]
async fn a_public_address_serves_any_name_to_programs_and_no_foreign_page() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(on_all_addresses(dir.path(), "--insecure-open"), &[]).await;
    for program in [("accept", "*/*"), ("user-agent", "curl/8.5.0"), ("accept-language", "*")] {
        acquires_each(&node, "", [&[("host", "locks.example.com"), program][..]]).await;
    }
    let foreign = [
        [("host", "10.0.0.1"), ("sec-fetch-site", "cross-site")],
        [("host", "localhost"), ("origin", "https://evil.example")],
    ];
    acquires_each(&node, "foreign-origin", foreign.iter().map(|headers| &headers[..])).await;
    // The owner of a name can point it at this node: then the browser sees no other origin.
    for browser in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-site", "none"),
        ("referer", "http://evil.example/"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept-language", "en-US,en;q=0.5"),
    ] {
        let headers = [("host", "evil.example"), browser];
        acquires_each(&node, "foreign-host", [&headers[..]]).await;
        send(to(&node, Method::GET, "/v1/locks", &headers)).await.assert_problem(403, "foreign-host");
        for own in ["127.0.0.1", "10.0.0.1:7070", "[::1]", "node-1"].iter().filter(|_| browser.0 != "origin") {
            acquires_each(&node, "", [&[("host", *own), browser][..]]).await;
        }
    }
}

#[tokio::test]
async fn every_page_has_a_content_security_policy() {
    let node = embedded().await;
    for path in ["/", "/docs/", "/docs/index.html", "/errors/lock-held"] {
        let page = get(&node, path).await;
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        for rule in ["default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("script-src") || policy.contains("script-src 'self';"), "{path}: {policy}");
    }
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_may_call_the_node_and_read_its_answers() {
    let node = Node::start(BIN, &["--cors-origins", "https://console.example.com,http://localhost:3000"]).await;
    let origin = "https://console.example.com";
    let page = [("origin", origin), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")];
    let preflight =
        [page[0], ("access-control-request-method", "POST"), ("access-control-request-headers", "authorization")];
    let asked = to(&node, Method::OPTIONS, "/v1/locks/k/acquire", &preflight).send().await.unwrap();
    assert_eq!(asked.status(), 200);
    let allows = |name: &str| asked.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(allows("access-control-allow-origin"), origin);
    assert!(allows("access-control-allow-methods").contains("DELETE"));
    assert!(allows("access-control-allow-headers").contains("authorization"));
    assert!(!asked.headers().contains_key("access-control-allow-credentials"));
    let granted = acquires(&node, &page).await;
    assert_eq!((granted.status.as_u16(), &granted.headers["vary"]), (200, &"origin".parse().unwrap()));
    assert_eq!(granted.headers["access-control-allow-origin"], origin);
    let held = acquires(&node, &page).await;
    held.assert_problem(423, "lock-held");
    assert!(held.headers.contains_key("access-control-allow-origin"));

    for foreign in
        ["https://evil.example", "https://console.example.com.evil.example", "http://console.example.com", "null"]
    {
        let page = [("origin", foreign), page[1], page[2]];
        acquires_each(&node, "foreign-origin", [&page[..]]).await;
        let asked = to(&node, Method::OPTIONS, "/v1/locks/k/acquire", &[page[0], preflight[1]]).send().await.unwrap();
        assert!(!asked.headers().contains_key("access-control-allow-origin"), "{foreign}");
    }
}
