"""The words, none of them one of the prompt, and the marks of a guess."""

from __future__ import annotations

WORDS_TEXT = """
    about above actor acute admit adopt adult again agent agree ahead alarm album alert alike alive
    allow alone along alter among anger angle angry apart apple apply arena argue arise array aside asset
    audio avoid award aware badly baker bases basic basis beach began begin being below bench birth black
    blame blind block blood board boost booth bound brain brand bread break breed brief bring broad broke
    brown build built buyer cable carry catch cause chain chair chart chase cheap check chest chief child
    chose civil claim class clean clear click clock close coach coast could count court cover craft crash
    cream crime cross crowd crown curve cycle daily dance dealt death debut delay depth doing doubt dozen
    draft drama drawn dream dress drill drink drive drove dying eager early earth eight elite empty enemy
    enjoy enter entry equal error event exact exist extra faith false fault fiber field fifth fifty
    fight final first fixed flash fleet floor fluid focus force forth forty forum found frame fraud fresh
    front fruit fully funny giant given glass globe going grace grade grand grant grass great green gross
    group grown guard guest guide happy heart heavy hence horse hotel house human ideal image index
    inner input issue joint judge knife known label large laser later laugh layer learn lease least leave
    legal level light limit local logic loose lower lucky lunch lying magic major maker march match maybe
    mayor meant media metal might minor minus mixed model money month moral motor mount mouse mouth movie
    music needs nerve never night noise north noted novel nurse occur ocean offer often order other ought
    paint panel paper party peace phase phone photo piece pilot pitch plain plane plant plate point
    pound power press price pride prime print prior prize proof proud prove queen quick quiet quite radio
    raise range rapid ratio reach ready refer rival river rough round route royal rural scale scene
    scope score sense serve seven shall shape share sharp sheet shelf shell shift shirt shock shoot short
    shown sight since skill sleep slide small smart smile smoke solid solve sorry sound south space spare
    speak speed spend spent split spoke sport staff stage stake stand start state steam steel stick still
    stock stone stood store storm story strip stuck study stuff style sugar suite super sweet table taken
    taste teach thank theme there these thick thing third those three throw tight times title today
    topic total touch tough tower track trade train treat trend trial tried truck truly trust truth twice
    under union unity until upper urban usage usual valid value video virus visit vital voice waste watch
    water wheel where which while white whole whose woman world worry worse worst worth would wound write
    wrong youth
"""
WORDS = WORDS_TEXT.split()


def feedback(guess: str, word: str) -> str:
    """Return five marks; a letter gets Y at most as often as the word has it in addition to its G."""
    left = [letter for letter, guessed in zip(word, guess, strict=True) if letter != guessed]
    marks = []
    for letter, guessed in zip(word, guess, strict=True):
        if letter == guessed:
            marks.append("G")
        elif guessed in left:
            left.remove(guessed)
            marks.append("Y")
        else:
            marks.append("X")
    return "".join(marks)
