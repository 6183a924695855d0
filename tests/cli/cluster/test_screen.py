"""What `ls` and `top` draw, as text: every figure in its place, at every width."""

import io
from collections import Counter

from rich.console import Console

from coadapt.cli.client import JsonObject
from coadapt.cli.cluster.screen import NUM_LOOKS, Screen
from coadapt.cli.jobs.job_table import colours_of, duration, job_view


def job(job_id: str, state: str, num_gpus: int, **changes: object) -> JsonObject:
    values: JsonObject = {
        "id": job_id,
        "state": state,
        "num_gpus": num_gpus,
        "gpus_min": 1,
        "gpus_max": 4,
        "allocation": [["box", num_gpus]] if num_gpus else [],
        "batch": {"total": 128, "atomic": 64, "accumulation": 1},
        "efficiency": 0.834,
        "progress": 30.0,
        "progress_target": 120.0,
        "age_s": 187.0,
        "ended_at": None,
        "explanation": "runs: the next GPU would add 8 %\nsecond line",
    }
    return {**values, **changes}  # type: ignore[dict-item]  # tests pass plain JSON values


def cluster(*jobs: JsonObject, **changes: object) -> JsonObject:
    used = float(sum(entry["num_gpus"] for entry in jobs))  # type: ignore[misc]  # numbers, see job()
    values: JsonObject = {
        "at": 0.0,
        "num_gpus": 4,
        "num_gpus_used": used,
        "round": 7,
        "policy": "pollux",
        "plan_error": "",
        "buying": None,
        "nodes": [
            {
                "id": "box",
                "num_gpus": 4,
                "num_gpus_used": used,
                "gpu_type": "cpu",
                "rack": "",
            }
        ],
        "jobs": list(jobs),
        "num_jobs": dict(Counter(str(entry["state"]) for entry in jobs)),
    }
    return {**values, **changes}  # type: ignore[dict-item]  # tests pass plain JSON values


def shown(what: object, width: int) -> list[str]:
    console = Console(
        width=width, record=True, force_terminal=False, file=io.StringIO()
    )
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


RUNNING = job("a", "running", 3)
WAITING = job(
    "b", "pending", 0, batch=None, efficiency=None, progress=0.0, progress_target=None
)
ENDED = job("c", "succeeded", 0, ended_at=5.0, explanation="finished", progress=90.0)


def test_a_wide_terminal_shows_all_in_one_row() -> None:
    lines = shown(
        job_view([RUNNING, WAITING, ENDED], colours_of([RUNNING, WAITING, ENDED]), 130),
        130,
    )
    assert [line.split() for line in lines] == [
        ["JOB", "STATE", "GPUS", "BATCH", "EFF", "AGE", "PROGRESS", "WHY"],
        *(
            row.split()
            for row in (
                (
                    "■ a running 3 of 1..4 128 83% 3m07s ━━━╸ 25% runs: the next GPU "
                    "would add 8 %"
                ),
                "b pending 0 of 1..4 – – 3m07s – runs: the next GPU would add 8 %",
                "c succeeded 1..4 128 83% 3m07s ━━━━━━━━━━━━━━ 100% finished",
            )
        ),
    ]


def test_a_narrow_terminal_shows_reasons_of_active_jobs_below() -> None:
    jobs = [RUNNING, WAITING, ENDED]
    lines = shown(job_view(jobs, colours_of(jobs), 80), 80)
    assert max(map(len, lines)) <= 80
    assert "WHY" not in lines[0]
    assert "━" not in "".join(lines)
    assert lines[-2:] == [
        "■ a: runs: the next GPU would add 8 %",
        "  b: runs: the next GPU would add 8 %",
    ]


def test_the_picture_names_policy_slots_and_counts() -> None:
    lines = shown(Screen().picture(cluster(RUNNING, WAITING, ENDED), 130), 130)
    assert lines[0].startswith("coadapt  pollux · round 7")
    assert lines[2] == "GPUs   box ■ ■ ■ ■  3 of 4 cpu"
    assert lines[3].startswith("Held   ▆")
    assert lines[3].endswith("75% now, 75% mean")
    assert lines[4] == "Jobs   1 hold GPUs · 1 wait · 1 ended"


def test_slots_have_the_colour_of_their_job() -> None:
    console = Console(
        width=100,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        file=io.StringIO(),
    )
    other = job("d", "running", 1)
    console.print(Screen().picture(cluster(RUNNING, other), 100))
    text = console.export_text(styles=True)
    colours = colours_of([RUNNING, other])
    for entry, slots in (("a", "■ ■ ■ "), ("d", "■ ")):
        red, green, blue = (
            int(colours[entry][place : place + 2], 16) for place in (1, 3, 5)
        )
        assert f"\x1b[38;2;{red};{green};{blue}m{slots}" in text


def test_a_refused_plan_and_a_silent_scheduler_are_told() -> None:
    picture = Screen().picture(
        cluster(RUNNING, plan_error="node 'box': 5 GPUs given"), 130, None, "no answer"
    )
    lines = shown(picture, 130)
    assert "the last plan was refused: node 'box': 5 GPUs given" in lines
    assert "no answer" in lines


def test_a_low_terminal_shows_as_many_jobs_as_fit() -> None:
    jobs = [job(f"job-{number}", "running", 0) for number in range(50)]
    lines = shown(Screen().picture(cluster(*jobs), 130, height=20), 130)
    assert len(lines) <= 20
    assert any("job-0 " in line for line in lines)


def test_a_cluster_without_nodes_or_jobs_is_shown_too() -> None:
    empty = cluster(num_gpus=0, nodes=[])
    assert "Jobs   0 hold GPUs · 0 wait · 0 ended" in shown(
        Screen().picture(empty, 80), 80
    )


def test_the_curve_keeps_the_last_looks() -> None:
    screen = Screen()
    for _ in range(2 * NUM_LOOKS):
        screen.picture(cluster(RUNNING), 80)
    idle = shown(screen.picture(cluster(), 80), 80)
    assert max(map(len, idle)) <= 80
    assert any(
        line.endswith(f"{'▆' * (NUM_LOOKS - 1)}   0% now, 73% mean") for line in idle
    )


def test_durations_are_short() -> None:
    assert [
        duration(seconds)
        for seconds in (-1, 0, 59.9, 60, 3599, 3600, 86_399, 86_400, 1e6)
    ] == [
        "0s",
        "0s",
        "59s",
        "1m00s",
        "59m59s",
        "1h00m",
        "23h59m",
        "1d00h",
        "11d13h",
    ]


def test_counts_are_of_all_jobs_and_not_of_those_shown() -> None:
    numbers = {"running": 4, "pending": 9_996, "succeeded": 51}
    lines = shown(Screen().picture(cluster(RUNNING, num_jobs=numbers), 100), 100)
    assert "Jobs   4 hold GPUs · 9996 wait · 51 ended" in lines


def test_owners_have_columns_where_they_differ_and_names_where_ids_cannot_tell() -> (
    None
):
    plain = shown(job_view([RUNNING], {}, 130), 130)
    assert "TENANT" not in plain[0]
    owned = job(
        "job-7a770083", "running", 1, name="训练-ß é", tenant="vision", priority=3
    )
    lines = shown(job_view([RUNNING, owned], {}, 160), 160)
    assert lines[0].split()[:4] == ["JOB", "TENANT", "PRIO", "STATE"]
    assert lines[2].split()[:5] == ["job-7a770083", "训练-ß", "é", "vision", "3"]
