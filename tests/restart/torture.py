"""Kills runs at random times and inside saves, until the requested number has been killed, and reports losses: nothing
may be lost.
  torture.py [KILLS [STATE]]     STATE: a file that records finished work, so that a stopped campaign continues
After every kill: no committed checkpoint is lost, every visible one is whole (`inspect --verify`). At the end of every
run losses, norms and shards bitwise equal the undisturbed run's. Needs ESPALIER."""
import time

from support.campaign import LAYOUTS, Campaign, run, times
from support.disturbed import events, verified, visible
from support.jobs import kill
from support.runs import Checks

SAVE = [
    "copy", "begin", "make-dir", "shard-open", "shard-layout", "shard-data", "shard-fsync", "shard-check", "gather",
    "deck", "master", "manifest", "fsync-dir", "announce", "rename", "commit", "latest", "settled", "retention",
    "remove"
]
ELSEWHERE = ["staging", "load", "proof", "step"]
LAST_VISIT = 4


class Torture(Campaign):
    def __init__(self, folder, state_path):
        super().__init__(folder, state_path, "kills", {"inside_a_save": 0, "lost": 0, "invalid": 0}, steps=12, every=2)

    def disturb(self, home, layout):
        stage = self.random.choice(SAVE if self.random.random() < 0.8 else ELSEWHERE)
        way = self.random.choice([self.at_random, self.at_random, self.at_stage, self.held_at_stage])
        killed = way(home, layout, stage) != 0
        self.state["kills"] += killed
        self.state["inside_a_save"] += killed and way != self.at_random and stage in SAVE
        self.judge(home)
        return killed

    def at_random(self, home, layout, _):
        with self.start(home, layout) as job:
            time.sleep(self.random.uniform(0, self.undisturbed(layout)[1]))
            return self.ended(job, self.strike(job) + " at random")

    def at_stage(self, home, layout, stage):
        """Killed at a fault point: one rank or all of them."""
        rank = self.random.choice([None, self.random.randrange(LAYOUTS[layout][0])])
        with self.start(home, layout, f"{stage}:kill:{self.random.randint(1, LAST_VISIT)}", rank) as job:
            return self.ended(job, f"{'ranks' if rank is None else 'rank'} at {stage}")

    def held_at_stage(self, home, layout, stage):
        """Killed from outside, while all ranks are held at the stage."""
        with self.start(home, layout, f"{stage}:hold:{self.random.randint(1, LAST_VISIT)}") as job:
            return self.ended(job, f"{self.strike(job)} at {stage}" if job.held() else "nothing")

    def strike(self, job):
        """Kills some processes of the job; returns which."""
        ranks, launcher = job.look(), [job.launcher.pid]
        one = self.random.sample(ranks, min(1, len(ranks)))
        what, victims = self.random.choice([("rank", one), ("ranks", ranks[1:] or ranks), ("ranks", ranks),
                                            ("launcher", launcher), ("launcher and rank", launcher + one)])
        job.ending_since = time.monotonic()
        kill(victims or launcher)
        return what if victims else "launcher"

    def judge(self, home):
        """After a kill: every reported checkpoint except those that retention removed must exist, and every one must be
        whole."""
        found = visible(home)
        reported = max((event["step"] for event in events(home, "checkpoint")), default=0)
        self.state["lost"] += reported > max((int(path.rpartition("-")[2]) for path in found), default=0)
        self.state["invalid"] += sum(not verified(path) for path in found)


def main():
    found, checks = run(Torture, default=10), Checks()
    ends = found["ends"]
    checks.that(
        found["lost"] == 0,
        f"{found['kills']} kills, {found['inside_a_save']} of them inside a save: no committed checkpoint lost")
    checks.that(found["invalid"] == 0, "nothing visible is invalid")
    checks.that(found["different"] == 0, f"{found['runs']} runs: each bitwise the one that nobody killed")
    checks.that(
        found["hung"] == 0,
        f"every job ended: {times(ends)}; the launcher killed: {times([end for end in ends if 'launcher' in end[2]])}; "
        f"a launcher that outlived its last rank: {found['launcher_stayed']}")
    checks.finish()


main()
