"""Shortest prompt first: a shorter arrival displaces the longest prompt when slots or memory are short."""

from schedulers import ChunkedPrefill


class ShortestPrompt(ChunkedPrefill):
    def order(self, request, now):
        return request.num_prompt_tokens

    def victim(self, running, candidate):
        longest = max(running, key=lambda request: request.num_prompt_tokens)
        return longest if longest.num_prompt_tokens > candidate.num_prompt_tokens else None
