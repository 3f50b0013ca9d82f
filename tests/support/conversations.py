"""Conversations whose text is short and known: bytes are tokens."""

TEMPLATE = ("{%- for m in messages %}{{ m.role[0] + ':' }}{% if m.role == 'assistant' %}{% generation %}"
            "{{ m.content + '|' }}{% endgeneration %}{% else %}{{ m.content + '|' }}{% endif %}{% endfor %}")


def conversation(*turns):
    """The user begins, and the assistant answers."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[k % 2], "content": text} for k, text in enumerate(turns)]}


def tokens(c):
    """The text of a conversation by TEMPLATE."""
    return "".join(f"{m['role'][0]}:{m['content']}|" for m in c["messages"])
