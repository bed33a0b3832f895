"""Answers follow from the prompt alone and end where the request says."""

from __future__ import annotations

import pytest

from router.sim.engines.answers import LONGEST_ANSWER, SHORTEST_ANSWER, AnswerLimits, Answers
from router.sim.engines.chains import TokenChain, pack_tokens
from router.sim.engines.errors import SpecError
from router.sim.engines.specs import CacheSpec, ClusterSpec, LinkSpec
from tests.fakes.standins import HYBRID, engine_spec, shipped_tokenizer

PROMPT = pack_tokens([5, 6, 7])


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers(shipped_tokenizer())


def test_equal_prompts_get_equal_answers_and_others_do_not(answers: Answers) -> None:
    """The prompt's tokens decide; another prompt or another choice says something else."""
    limits = AnswerLimits(room=100, max_tokens=20)
    again = Answers(shipped_tokenizer()).plan(PROMPT, limits)
    assert answers.plan(PROMPT, limits) == again
    assert answers.plan(pack_tokens([5, 6, 8]), limits).tokens != again.tokens
    assert answers.plan(PROMPT, limits, choice=1).tokens != again.tokens


def test_text_of_tokens_adds_up_to_the_decoded_text(answers: Answers) -> None:
    """Every token has text of its own, so a stream's deltas join to the whole answer."""
    answer = answers.plan(PROMPT, AnswerLimits(room=500, max_tokens=500))
    assert "".join(answer.pieces) == shipped_tokenizer().decode(answer.tokens)
    assert all(answer.pieces)


@pytest.mark.parametrize(
    ("limits", "length", "reason"),
    [
        (AnswerLimits(room=1000, max_tokens=7), 7, "length"),
        (AnswerLimits(room=6, max_tokens=100), 6, "length"),
        (AnswerLimits(room=3), 3, "length"),
        (AnswerLimits(room=200, ignore_eos=True), 200, "length"),
        (AnswerLimits(room=200, min_tokens=150), 150, "stop"),
    ],
)
def test_answers_end_as_asked(
    answers: Answers, limits: AnswerLimits, length: int, reason: str
) -> None:
    """`max_tokens`, the context's room, `ignore_eos` and `min_tokens` are all kept."""
    answer = answers.plan(PROMPT, limits)
    assert (len(answer.tokens), answer.finish_reason) == (length, reason)


def test_an_open_answer_has_a_reading_length(answers: Answers) -> None:
    """Without `max_tokens` the length follows from the prompt, within the documented bounds."""
    answer = answers.plan(PROMPT, AnswerLimits(room=1000))
    assert SHORTEST_ANSWER <= len(answer.tokens) <= LONGEST_ANSWER
    assert answer.finish_reason == "stop"


def test_stop_strings_and_ids_end_the_answer(answers: Answers) -> None:
    """A stop string is cut from the text, a stop id ends after itself, `min_tokens` holds both."""
    whole = answers.plan(PROMPT, AnswerLimits(room=100, max_tokens=30))
    text = "".join(whole.pieces)
    word = whole.pieces[9] + whole.pieces[10]
    stopped = answers.plan(PROMPT, AnswerLimits(room=100, max_tokens=30, stop=(word,)))
    assert "".join(stopped.pieces) == text[: text.index(word)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", word)
    by_id = frozenset({whole.tokens[4]})
    short = answers.plan(PROMPT, AnswerLimits(room=100, max_tokens=30, stop_token_ids=by_id))
    assert short.tokens == whole.tokens[:5]
    late = AnswerLimits(room=100, max_tokens=30, stop_token_ids=by_id, min_tokens=6)
    assert len(answers.plan(PROMPT, late).tokens) > 5


def test_labels_chain_and_salts_isolate() -> None:
    """Every label covers all before it; a salt tells chains apart, a seed renames them all."""
    plain = TokenChain(list(range(32)), unit=8)
    grown = TokenChain(list(range(10)), unit=8)
    grown.extend(list(range(10, 32)))
    assert grown.labels == plain.labels
    salted = TokenChain(list(range(32)), unit=8, salt="a")
    adapted = TokenChain(list(range(32)), unit=8, lora="a")
    seeded = TokenChain(list(range(32)), unit=8, seed=1)
    changed = TokenChain([99, *range(1, 32)], unit=8)
    every = [*plain.labels, *salted.labels, *adapted.labels, *seeded.labels, *changed.labels]
    assert len(set(every)) == 20
    assert [salted.extra_keys(0), salted.extra_keys(1)] == [["a"], None]
    assert [adapted.extra_keys(0), adapted.extra_keys(3)] == [["a"], ["a"]]


def test_specs_refuse_what_no_engine_could_run() -> None:
    """Impossible sizes, rates, names and links are errors of the composer, told at once."""
    with pytest.raises(SpecError, match="cannot hold one request"):
        engine_spec("small", cache=CacheSpec(hash_unit=16, blocks=10, groups=HYBRID))
    with pytest.raises(SpecError, match="multiple"):
        CacheSpec(hash_unit=16, retention_interval=24)
    with pytest.raises(SpecError, match="bandwidth"):
        LinkSpec("l", "east", float("nan"))
    with pytest.raises(SpecError, match="share a name"):
        ClusterSpec("c", (engine_spec("a"), engine_spec("a")))
    with pytest.raises(SpecError, match="back to its own"):
        ClusterSpec("c", (), (LinkSpec("l", "c", 1.0),))
