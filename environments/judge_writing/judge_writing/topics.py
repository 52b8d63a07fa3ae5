"""Topics with the points that an explanation should make, and audiences."""

from __future__ import annotations

AUDIENCES = ("a child of ten", "a colleague in a hurry", "a newspaper's readers", "a pupil before an exam")
TOPICS = {
    "why ice floats on water": ("ice is less dense than water", "water expands when it freezes"),
    "why the sky is blue": (
        "air scatters blue light more than red",
        "the scattered light comes from all directions",
    ),
    "why the moon has phases": (
        "the sun lights one half of the moon",
        "we see that half from changing angles",
    ),
    "why there are seasons": ("the axis of the earth is tilted", "sunlight falls more steeply in summer"),
    "why a rainbow appears": ("drops of rain bend the light", "each colour is bent by another angle"),
    "why bread rises": ("yeast makes carbon dioxide from sugar", "the gas is held by gluten"),
    "why metal feels colder than wood": ("metal conducts heat away faster", "both have the same temperature"),
    "why we hear thunder after lightning": ("sound is slower than light", "both start at the same moment"),
    "why onions make us cry": ("cutting the onion sets a gas free", "the gas irritates the eyes"),
    "why the sea is salty": ("rivers carry salt from rocks", "water evaporates and leaves the salt behind"),
    "why leaves turn yellow in autumn": (
        "the green chlorophyll is broken down",
        "yellow pigments were there before",
    ),
    "why a boat of steel floats": (
        "the boat displaces water",
        "its hull holds air, so it is less dense on average",
    ),
    "why soap removes grease": ("one end of the soap sticks to fat", "the other end sticks to water"),
    "why ears pop in an aeroplane": ("the pressure of the air changes", "swallowing opens a tube to the ear"),
    "why cats' eyes shine at night": (
        "a layer behind the retina reflects light",
        "the light passes the retina twice",
    ),
    "why iron rusts": ("iron reacts with oxygen", "water makes the reaction possible"),
    "why a pendulum clock keeps time": ("a swing takes the same time", "the time depends on the length"),
    "why popcorn pops": ("water in the kernel turns to steam", "the pressure bursts the shell"),
    "why salt melts ice on roads": ("salt lowers the freezing point", "the salty water stays liquid"),
    "why stars twinkle": (
        "the air moves and bends their light",
        "stars are points because they are far away",
    ),
    "why tides rise twice a day": (
        "the gravity of the moon pulls the sea",
        "the earth turns below two bulges",
    ),
    "why we sweat": ("sweat evaporates from the skin", "evaporation takes heat from the body"),
    "why a hot air balloon rises": ("warm air is less dense", "the colder air around it pushes it up"),
    "why yoghurt is sour": ("bacteria turn milk sugar into acid", "the acid makes the milk thick"),
}
