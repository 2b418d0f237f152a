"""docs/AGENTS.md: its transcript is what the program prints, and its hooks refuse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from world import BINARY, Case

DOCS = Path(__file__).parents[3] / "docs"


class Page(Case):
    def setUp(self) -> None:
        super().setUp()
        (self.directory / "bin").mkdir()
        (self.directory / "bin/latchgate").symlink_to(BINARY)
        path = f"{self.directory}/bin:{DOCS}/recipes:{os.environ['PATH']}"
        author = {f"GIT_{who}_{what}": "ann@example.com" for who in ["AUTHOR", "COMMITTER"] for what in ["NAME", "EMAIL"]}
        self.env = {**os.environ, **author, "PATH": path, "LATCHGATE_URL": self.node.url, "LATCHGATE_OWNER": "ann-7"}

    def run_in(self, folder: str, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        where = self.directory / folder
        return subprocess.run(command, cwd=where, env=self.env, input=text, capture_output=True, text=True, timeout=120)

    def git(self, folder: str, *arguments: str) -> None:
        done = self.run_in(folder, "git", "-c", "init.defaultBranch=main", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_two_agents_see_what_the_page_shows(self) -> None:
        del self.env["LATCHGATE_OWNER"]
        done = self.run_in(".", sys.executable, "-B", str(DOCS / "programs/agents.py"))
        self.assertEqual(done.returncode, 0, done.stderr)

        def shape(text: str) -> str:
            text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
            return re.sub(r"\b([0-9a-f]{32}|\d{16}|(?<=/)[0-9a-f]{8})\b", "ID", text).strip()

        shown = re.findall(r"```text\n(.*?)```", (DOCS / "AGENTS.md").read_text(), re.S)
        self.assertIn(shape(done.stdout), [shape(block) for block in shown])

    async def test_an_edit_outside_of_a_held_path_is_refused(self) -> None:
        (self.directory / "shop/src/a").mkdir(parents=True)
        self.git("shop", "init", "-q")

        def edit(file: str) -> int:
            hook = json.dumps({"tool_name": "Edit", "tool_input": {"file_path": f"{self.directory}/shop/{file}"}})
            return self.run_in("shop", "held-path", text=hook).returncode

        self.assertEqual(edit("src/a/b.rs"), 2)
        async with self.session("--repository", "shop", "--owner", "ann-7") as ann:
            await ann.ok("acquire", paths=["src/a", ".hidden"])
            self.assertEqual([edit(file) for file in ["src/a/b.rs", "src/a/new/c.rs", ".hidden", "src/b.rs", "hidden"]], [0, 0, 0, 2, 2])
            await ann.ok("release")
            await ann.ok("acquire", paths=["."])
            self.assertEqual(edit("src/b.rs"), 0)
        async with self.session("--repository", "shop", "--owner", "bob-1") as bob:
            await bob.ok("acquire", paths=["src/a"])
            self.assertEqual(edit("src/a/b.rs"), 2, "it is held by another session")
        self.env["LATCHGATE_URL"] = "http://127.0.0.1:1"
        self.assertEqual(edit("src/a/b.rs"), 2, "no node answers")

    async def test_a_push_without_a_valid_token_is_refused(self) -> None:
        for folder in ["origin", "clone/src/a"]:
            (self.directory / folder).mkdir(parents=True)
        self.git("origin", "init", "-q", "--bare")
        self.git("origin", "config", "receive.advertisePushOptions", "true")
        hook = self.directory / "origin/hooks/pre-receive"
        hook.write_text("#!/bin/sh\nexec fenced-push pushed\n")
        hook.chmod(0o755)
        self.git("clone", "init", "-q")

        def push(text: str, *options: str) -> str:
            (self.directory / "clone/src/a/b.rs").write_text(text)
            self.git("clone", "add", ".")
            self.git("clone", "commit", "-q", "-m", text)
            given = [argument for option in options for argument in ("-o", option)]
            done = self.run_in("clone", "git", "push", "-q", *given, str(self.directory / "origin"), "HEAD:main")
            return "" if done.returncode == 0 else done.stderr

        self.assertIn("no lease covers src/a/b.rs", push("one"))
        async with self.session("--repository", "pushed") as ann, self.session("--repository", "pushed") as bob:
            token = (await ann.ok("acquire", paths=["src/a/"]))["tokens"]["path/pushed:src/a"]
            self.assertIn("no lease covers", push("two", "other"))
            self.assertEqual(push("three", f"lease=src/a/={token}"), "")
            await ann.ok("release")
            newer = (await bob.ok("acquire", paths=["src/a/"]))["tokens"]["path/pushed:src/a"]
            self.assertIn("is not held with", push("four", f"lease=src/a={token}"))
            self.assertEqual(push("five", f"lease=src/a={newer}"), "")
            await bob.ok("release")
            self.assertIn("is not held with", push("six", f"lease=src/a={newer}"), "it is released")
            await ann.ok("acquire", paths=["src"])
            self.assertIn("is not held with", push("seven", f"lease=src/a={newer}"), "another session has the folder")
