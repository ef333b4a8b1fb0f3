"""What can go wrong with a page, told apart by who can do something about it.

A PageError is about the page or the address that was asked for: the policy reads it and may try another one. It is a
whole English sentence and holds nothing that the policy did not say itself or could not know: no addresses that a name
resolved to, no paths, no exception texts. Everything else is the machinery's: TransientError where another try may
help, any other exception where not.
"""


class PageError(Exception):
    """A sentence for the policy. `kind`: one word for programs ("address", "robots", "status", ...).

    `lasting`: true if the same will hold in an hour, so that it may be remembered for a while.
    """

    def __init__(self, kind: str, sentence: str, *, lasting: bool = True, status: int | None = None) -> None:
        super().__init__(sentence)
        self.kind, self.sentence, self.lasting, self.status = kind, sentence, lasting, status


class NoNetworkError(Exception):
    """Nothing could be reached for a reason that lies at this end as likely as at the other."""
