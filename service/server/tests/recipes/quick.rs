//! docs/programs/quick.*: first programs in languages that have no client.

use std::process::Output;

use tokio::process::Command;

use crate::book::REPOSITORY;
use crate::world::World;

#[tokio::test]
async fn a_second_run_of_a_first_program_prints_the_result_of_the_first() {
    // A URL that is set and empty is refused.
    let world = World::new().await;
    for (interpreter, program) in [("php", "quick.php"), ("ruby", "quick.rb")] {
        let run = async |url: &str| {
            let path = format!("{REPOSITORY}/docs/programs/{program}");
            Command::new(interpreter).arg(path).env("LATCHGATE_URL", url).output().await
        };
        let Ok(Output { status, stderr, .. }) = run("").await else {
            eprintln!("{program} is not run: there is no {interpreter}");
            continue;
        };
        let said = String::from_utf8_lossy(&stderr);
        assert!(!status.success() && said.contains("LATCHGATE_URL is set and empty"), "{program}: {said}");
        for end in ["done now\n", "done earlier\n"] {
            let ran = run(&world.node.base_url()).await.unwrap();
            let printed = String::from_utf8(ran.stdout).unwrap();
            let is_right = printed.starts_with("working with token ") && printed.ends_with(end);
            assert!(ran.status.success() && is_right, "{program}: {printed}{}", String::from_utf8_lossy(&ran.stderr));
        }
    }
}
