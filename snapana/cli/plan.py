"""``snapana plan``."""

from __future__ import annotations

import click

from snapana.cli.common import SizeType, print_json, progress
from snapana.errors import SnapanaError


class _ShareType(click.ParamType[float]):
    """A share, such as ``5%`` or ``0.05``."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            self.fail(f"not a share: {text!r}. Write it like 5% or 0.05.", param, ctx)
        return share


@click.command()
@click.argument("input", metavar="INPUT")
@click.option("--batch", type=click.IntRange(1), required=True, metavar="N", help="The micro-batch of INPUT.")
@click.option("--other", default=None, metavar="FILE", help="The same program at another batch, or with checkpointing.")
@click.option("--other-batch", type=click.IntRange(1), default=None, metavar="N", help="The micro-batch of it.")
@click.option(
    "--at", "at", type=click.IntRange(1, 2**20), multiple=True, metavar="N", help="A micro-batch to predict; several."
)
@click.option(
    "--effective-batch",
    type=click.IntRange(1, 2**20),
    default=None,
    metavar="N",
    help="What one step of the optimizer shall see; by default the largest of --at and the recorded ones.",
)
@click.option("--capacity", type=SizeType(), default=None, metavar="SIZE", help="The most that PyTorch may reserve.")
@click.option(
    "--margin", type=_ShareType(), default="5%", show_default=True, metavar="SHARE", help="Leave so much of it free."
)
@click.option("--conf", default=None, metavar="CONF", help="Allocator settings; by default the recorded ones.")
@click.option("--device", type=int, default=None, help="Only this device; all by default.")
@click.option("--max-input", type=SizeType(), default="16GiB", help="Refuse more than this, decompressed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    input: str,
    batch: int,
    other: str | None,
    other_batch: int | None,
    at: tuple[int, ...],
    effective_batch: int | None,
    capacity: int | None,
    margin: float,
    conf: str | None,
    device: int | None,
    max_input: int,
    as_json: bool,
) -> None:
    """Say what other batch sizes would need, which is the largest that fits, and how to accumulate gradients.

    INPUT is a recording of training at micro-batch --batch. A second one at another batch makes the plan exact for
    whatever grows in a straight line; a second one at the same batch with activation checkpointing shows its effect.

    \b
    Examples:
      snapana plan profil_vram.pickle --batch 8 --at 64 --capacity 24GiB
      snapana plan batch4.pickle --batch 4 --other batch16.pickle --other-batch 16 --at 32 --at 64
    """
    from snapana.allocator.settings import parse_conf
    from snapana.analyses.overview import with_history
    from snapana.analyses.plan import plan as make_plan
    from snapana.loading import load_snapshot

    if (other is None) != (other_batch is None):
        raise SnapanaError("usage.plan", "--other and --other-batch belong together.")
    settings = None if conf is None else parse_conf(conf)
    with progress() as tell:
        snapshot = load_snapshot(input, max_input=max_input, progress=tell)
        second = None if other is None else load_snapshot(other, max_input=max_input, progress=tell)
        found = [
            make_plan(
                snapshot,
                number,
                batch,
                other=second,
                other_batch=other_batch,
                at=at,
                effective_batch=effective_batch,
                capacity=capacity,
                margin=margin,
                settings=settings,
                progress=tell,
            )
            for number in with_history(snapshot, device)
        ]
    if not found:
        raise SnapanaError("usage.plan", f"{input} holds no allocations.")
    if as_json:
        from snapana.report.plan import plan_document

        print_json(plan_document(found))
    else:
        from snapana.report.plan import print_plan

        print_plan(found)
