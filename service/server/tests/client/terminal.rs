//! `latchgate lock` at a terminal, which `script` makes.

use std::time::Duration;

use latchgate_testkit::node::Node;
use latchgate_testkit::{eventually, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{Desk, Run, look, node, until_held};

/// A shell with job control at a terminal.
struct Terminal {
    shell: Run,
    desk: Desk,
}

impl Terminal {
    fn open(node: &Node) -> Self {
        let desk = Desk::new(&[node]);
        let shell = "PS1='> ' TERM=xterm exec script -qec 'bash --norc --noprofile -i' /dev/null 2>/dev/null";
        let mut shell = desk.shell(shell);
        // Reads on, so that the terminal never blocks.
        let mut output = shell.child.stdout.take().unwrap();
        tokio::spawn(async move { while output.read(&mut [0; 4_096]).await.is_ok_and(|length| length > 0) {} });
        Self { shell, desk }
    }

    async fn types(&mut self, keys: &str) {
        let input = self.shell.child.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).await.unwrap();
        input.flush().await.unwrap();
    }

    async fn until_written(&self, name: &str, text: &str) {
        let is_there = || std::future::ready(self.desk.read(name) == text);
        until(format!("{text:?} in {name}: {:?}", self.desk.read(name)), is_there).await;
    }
}

/// Puts the terminal into raw mode, as full-screen programs do, and reads single keys from it.
const FULL_SCREEN: &str = r#"
saved=$(stty -g </dev/tty); stty raw -echo </dev/tty
echo ready >ready
key=$(dd bs=1 count=1 2>/dev/null </dev/tty)
stty "$saved" </dev/tty
echo "key $key" >key
"#;

#[tokio::test]
async fn a_full_screen_program_has_the_terminal_and_the_shell_has_it_afterwards() {
    let node = node().await;
    let mut terminal = Terminal::open(&node);
    std::fs::write(terminal.desk.path("full-screen"), FULL_SCREEN).unwrap();
    terminal.types("latchgate lock k -- bash ./full-screen; echo $? >code\n").await;
    terminal.until_written("ready", "ready\n").await;
    assert_eq!(look(&node, "k").await["held"], true);
    terminal.types("x").await;
    terminal.until_written("key", "key x\n").await;
    terminal.until_written("code", "0\n").await;
    // In a pipeline the terminal is given when it is asked for.
    terminal.types("rm ready key code; latchgate lock k -- bash ./full-screen | cat; echo $? >code\n").await;
    terminal.until_written("ready", "ready\n").await;
    terminal.types("y").await;
    terminal.until_written("key", "key y\n").await;
    terminal.until_written("code", "0\n").await;
    until_held(&node, "k", false).await;
}

#[tokio::test]
async fn ctrl_c_ends_the_program_and_ctrl_z_brings_the_shell_back() {
    let node = node().await;
    let mut terminal = Terminal::open(&node);
    terminal.types("latchgate lock k -- sh -c 'echo ready >ready; sleep 600'; echo $? >code\n").await;
    terminal.until_written("ready", "ready\n").await;
    // The shell of the program loses the first one if it comes while it replaces itself with `sleep`.
    for _ in 0..100 {
        terminal.types("\u{3}").await;
        if eventually(Duration::from_millis(500), || async { look(&node, "k").await["held"] == false }).await {
            break;
        }
    }
    until_held(&node, "k", false).await;
    terminal.types("\necho $? >code\n").await;
    until("a code", || std::future::ready(terminal.desk.path("code").exists())).await;

    terminal.types("latchgate lock k --ttl 5m -- sh -c 'echo again >ready; read line; echo $line >line'\n").await;
    terminal.until_written("ready", "again\n").await;
    terminal.types("\u{1a}").await;
    // The shell is back, and the lock is still held.
    terminal.types("\necho back >back\n").await;
    terminal.until_written("back", "back\n").await;
    assert_eq!(look(&node, "k").await["held"], true);
    terminal.types("fg\n").await;
    terminal.types("typed\n").await;
    until("the program ends", || async { look(&node, "k").await["held"] == false }).await;
    terminal.types("\nexit\n").await;
}
