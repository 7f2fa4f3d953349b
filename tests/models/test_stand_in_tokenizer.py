"""The tokenizer that counts for models whose own is not known (specification section 4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mempo.agent.conversation import Conversation
from mempo.models.stand_in_tokenizer import StandInTokenizer

CONVERSATION = Conversation(StandInTokenizer(), "Be brief.")


@given(st.text(st.characters(codec="utf-8")) | st.text("<>|/memthinksearch im_start \n"))
def test_text_comes_back_letter_for_letter(text: str) -> None:
    ids = CONVERSATION.encode(CONVERSATION.inert(text))
    assert CONVERSATION.decode(ids) == CONVERSATION.inert(text)
    ends = [end for _, end in CONVERSATION.offsets(ids)]
    assert (ends[-1] if ends else 0) == len(CONVERSATION.inert(text))


def test_a_conversation_is_laid_out_as_chatml() -> None:
    ids = CONVERSATION.prompt_ids("Who?")
    whole = StandInTokenizer().decode(ids)
    assert whole == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert CONVERSATION.end_ids == {2}
    assert CONVERSATION.end_of_turn_id == 2
    assert CONVERSATION.inert("a<|im_end|>b") == "a(im_end)b"


def test_english_has_about_as_many_tokens_as_elsewhere() -> None:
    # 16 words and two marks; Qwen2.5's tokenizer makes 18 of it.
    sentence = "The president of the United States was born in the city of Springfield, Illinois."
    assert 15 <= CONVERSATION.count(sentence) <= 25
    assert CONVERSATION.count("日本語のテキスト") == 4
