"""The transition system: which actions the engine's loop allows, and what each does.

Stands for the loops of vllm/v1/engine/core.py: `step` where one step may be in flight,
`step_with_batch_queue` where more may. An action is a small integer: its kind and an argument.
"""

from __future__ import annotations

from enum import IntEnum

from kvproof.model import block_pool, connector, device, scheduler
from kvproof.model.rules import Rule
from kvproof.model.state import Load, Pause, Phase, Status
from kvproof.native.jit import kernel
from kvproof.native.record import clear


class Kind(IntEnum):
    """Kinds of actions."""

    ADD = 0
    ABORT = 1
    SCHEDULE = 2
    OUTPUT = 3
    DRAFTS = 4
    TRANSFER_LANDS = 5
    SENT = 6
    RESET_PREFIX_CACHE = 7
    SET_PAUSE_STATE = 8


KINDS = 16


@kernel
def encode(kind, argument):
    """The action of a kind with its argument."""
    return argument * KINDS + kind


@kernel
def kind_of(action):
    """Kind of an action."""
    return action % KINDS


@kernel
def argument_of(action):
    """Argument of an action."""
    return action // KINDS


@kernel
def is_alive(s, r):
    """Whether the scheduler still works on the request."""
    return Status.ABSENT < s.status[r] <= Status.PREEMPTED


@kernel
def _is_used(s, r, d):
    """Whether the output of step d for request r may be delivered."""
    return is_alive(s, r) and not (s.step_stale[d, r] and s.drop_stale[r])


@kernel
def _room(s, c, r):
    """Tokens that the request may still be given."""
    return min(
        c.max_tokens[r] - (s.num_tokens[r] - c.prompt_len[r]), c.max_model_len - s.num_tokens[r]
    )


@kernel
def num_load_choices(s, c, r):
    """Ways a synchronous load of the oldest step may end: whole, or one block fails."""
    if not c.may_fail_loads or s.step_load_tokens[0, r] == 0:
        return 1
    first = s.step_load_start[0, r] // c.block_size
    last = (s.step_load_start[0, r] + s.step_load_tokens[0, r] - 1) // c.block_size
    return 2 + last - first


@kernel
def num_stop_choices(s, c, r, accepted):
    """Places of a stop among the sampled tokens, none included; a token at a limit ends anyway."""
    if not c.may_stop[r]:
        return 1
    return 1 + max(min(accepted + 1, _room(s, c, r) - 1), 0)


@kernel
def num_sample_choices(s, c, r):
    """Ways the device may answer for one request: drafts accepted, and where a stop stands."""
    if not s.step_samples[0, r] or not _is_used(s, r, 0):
        return 1
    total = 0
    for accepted in range(s.step_acceptable[0, r] + 1):
        total += num_stop_choices(s, c, r, accepted)
    return total


@kernel
def num_output_choices(s, c):
    """Different outputs that the oldest step may have."""
    total = 1
    for k in range(s.step_len[0]):
        r = s.step_order[0, k] - 1
        total *= num_sample_choices(s, c, r) * num_load_choices(s, c, r)
    return total


@kernel
def decode_output(s, c, e, choice):
    """Spread the argument of an output into e.accepted, e.stop_at and e.load_fails."""
    for k in range(s.step_len[0]):
        r = s.step_order[0, k] - 1
        ways = num_load_choices(s, c, r)
        e.load_fails[r] = 0
        if choice % ways > 0:
            e.load_fails[r] = choice % ways + s.step_load_start[0, r] // c.block_size
        choice //= ways
        ways = num_sample_choices(s, c, r)
        rest = choice % ways
        choice //= ways
        accepted = 0
        while rest >= num_stop_choices(s, c, r, accepted) and ways > 1:
            rest -= num_stop_choices(s, c, r, accepted)
            accepted += 1
        e.accepted[r] = accepted
        e.stop_at[r] = rest


@kernel
def num_drafts_choices(s, c):
    """Different numbers of drafts that the drafter may propose."""
    total = 1
    for r in range(c.num_requests):
        if s.drafting[r]:
            total *= c.num_speculative_tokens + 1
    return total


@kernel
def _twin_arrived(s, c, r):
    """Whether the equal request before this one has arrived: they arrive in order."""
    return c.twin[r] == 0 or s.status[c.twin[r] - 1] != Status.ABSENT


@kernel
def enabled_actions(s, c, out):
    """Write the enabled actions to `out` (int32); returns how many.

    Nothing follows an assertion, nor a token out of place: the request's content is unknown then.
    """
    return _enabled(s, c, out, True)


@kernel
def enabled_calls(s, c, out):
    """The same with each call once, the device's first answer standing for all of them."""
    return _enabled(s, c, out, False)


MOST_ALONE = 6
"""Actions in one state of which there is one, whatever the requests; a bound."""


@kernel
def _enabled(s, c, out, every_answer):
    n = 0
    top = s.phase == Phase.TOP
    if s.assertion or s.wrong_output:
        return 0
    if s.phase == Phase.DRAFTS:
        for choice in range(num_drafts_choices(s, c) if every_answer else 1):
            out[n] = encode(Kind.DRAFTS, choice)
            n += 1
        return n
    if top:
        for r in range(c.num_requests):
            if s.status[r] == Status.ABSENT and _twin_arrived(s, c, r):
                out[n] = encode(Kind.ADD, r)
                n += 1
    for r in range(c.num_requests):
        known = s.status[r] != Status.ABSENT and s.status[r] != Status.GONE
        if c.may_abort[r] and known:
            out[n] = encode(Kind.ABORT, r)
            n += 1
    takes_step = top and scheduler.has_requests(s, c)
    if takes_step:
        out[n] = encode(Kind.SCHEDULE, 0)
        n += 1
    elif s.num_steps > 0:
        for choice in range(num_output_choices(s, c) if every_answer else 1):
            out[n] = encode(Kind.OUTPUT, choice)
            n += 1
    for r in range(c.num_requests):
        if s.load[r] == Load.PENDING:
            out[n] = encode(Kind.TRANSFER_LANDS, r)
            n += 1
            if c.may_fail_loads:
                first = s.load_start[r] // c.block_size
                last = (s.load_start[r] + s.load_tokens[r] - 1) // c.block_size
                for i in range(first, last + 1):
                    out[n] = encode(Kind.TRANSFER_LANDS, r + (1 + i) * c.num_requests)
                    n += 1
        if s.sending[r] == 1 and s.sending_wait[r] == 0:
            out[n] = encode(Kind.SENT, r)
            n += 1
    if top:
        if c.may_reset:
            out[n] = encode(Kind.RESET_PREFIX_CACHE, 0)
            n += 1
        if c.may_reset_running:
            out[n] = encode(Kind.RESET_PREFIX_CACHE, 1)
            n += 1
        if c.may_pause:
            for state in range(3):
                if s.pause != state:
                    out[n] = encode(Kind.SET_PAUSE_STATE, state)
                    n += 1
    return n


@kernel
def _schedule(s, c, e):
    scheduler.schedule(s, c, e)
    goes_round = s.num_steps < c.depth and (e.num_scheduled > 0 or scheduler.has_requests(s, c))
    if not goes_round:
        s.phase = Phase.OUTPUT


@kernel
def _output(s, c, e, choice):
    decode_output(s, c, e, choice)
    drafts_follow = c.num_speculative_tokens > 0 and not c.async_scheduling and s.step_len[0] > 0
    device.execute(s, c, e)
    scheduler.update_from_output(s, c, e)
    for r in range(c.num_requests):
        if e.delivered[r] > 0 and e.misread[r] and s.misread == 0:
            s.misread = r + 1
    if drafts_follow:
        for k in range(s.step_len[0]):
            r = s.step_order[0, k] - 1
            if s.status[r] == Status.RUNNING and s.step_samples[0, r] and not s.prefill_chunk[r]:
                s.drafting[r] = 1
            elif s.status[r] == Status.RUNNING and c.rules[Rule.ignore_drafts_of_prefill_chunks]:
                s.num_drafts[r] = 0
            elif s.status[r] == Status.RUNNING:
                s.drafting[r] = 1
    device.pop_step(s, c)
    connector.step_returned(s, c)
    s.phase = Phase.DRAFTS if drafts_follow else Phase.TOP


@kernel
def _drafts(s, c, choice):
    """The drafter's proposals reach the scheduler (Scheduler.update_draft_token_ids)."""
    for r in range(c.num_requests):
        if s.drafting[r]:
            s.num_drafts[r] = choice % (c.num_speculative_tokens + 1)
            s.old_drafts[r] = 1 if s.prefill_chunk[r] and s.num_drafts[r] > 0 else 0
            choice //= c.num_speculative_tokens + 1
            s.drafting[r] = 0
    s.phase = Phase.TOP


@kernel
def apply(s, c, e, action):
    """Take one enabled action on the state in place; `e` reports what happened."""
    clear(e)
    kind = kind_of(action)
    argument = argument_of(action)
    if kind == Kind.ADD:
        scheduler.add_request(s, c, argument)
    elif kind == Kind.ABORT:
        scheduler.finish_request(s, c, e, argument, Status.FINISHED_ABORTED)
    elif kind == Kind.SCHEDULE:
        _schedule(s, c, e)
    elif kind == Kind.OUTPUT:
        _output(s, c, e, argument)
    elif kind == Kind.DRAFTS:
        _drafts(s, c, argument)
    elif kind == Kind.TRANSFER_LANDS:
        device.transfer_lands(s, c, argument % c.num_requests, argument // c.num_requests - 1)
    elif kind == Kind.SENT:
        s.sending[argument] = 2
    elif kind == Kind.RESET_PREFIX_CACHE:
        e.reset_ok = scheduler.reset_prefix_cache(s, c, e, argument == 1)
    elif kind == Kind.SET_PAUSE_STATE:
        s.pause = argument
    device.forget_unreadable(s, c)


@kernel
def start(s, c):
    """Make the state of a fresh engine of a zeroed record."""
    s.phase = Phase.TOP
    s.pause = Pause.UNPAUSED
    for b in range(1, c.num_blocks):
        block_pool.insert_free(s, c, s.num_free, b)
