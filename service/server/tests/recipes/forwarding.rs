//! forward-notices.

use latchgate_testkit::until;
use nix::sys::signal::Signal;
use reqwest::Client;

use crate::world::World;

#[tokio::test]
async fn notices_are_forwarded_despite_a_failed_command_and_forwarder_restart() {
    let world = World::new().await;
    let warn_after = format!("{}/v1/admin/apps/default", world.node.base_url());
    let set = Client::new().patch(warn_after).body("{\"warn_after_ms\": 100}").send().await.unwrap();
    assert_eq!(set.status(), 200);
    let tell = "#!/usr/bin/env bash\nmkdir failed 2>/dev/null && exit 1\necho \"told $(jq -r '.kind+\" \"+.key' <<<\"$1\")\" >>log\n";
    world.put("tell", tell);
    let run = || world.run_with("a", "forward-notices", &["./tell"], &[("PAUSE", "0.1")]);
    let mut forwarder = run();
    world.until_there("seen").await;
    world.hold("one", "first", 0).await;
    assert_eq!(world.until_logged("told held_too_long", 1).await, ["one"]);
    assert!(world.path("failed").exists());

    forwarder.signal(Signal::SIGKILL);
    forwarder.code().await;
    world.hold("other", "second", 0).await;
    let _forwarder = run();
    let is_told = || std::future::ready(world.log().last().is_some_and(|line| line == "told held_too_long other"));
    until("the other is told of", is_told).await;
    // One whose id was not written yet when the forwarder was killed comes again.
    let mut told = world.logged("told held_too_long");
    told.dedup();
    assert_eq!(told, ["one", "other"]);
}
