"""Pools of words from which the generated world makes its names.

Every word is one plain capitalized ASCII word, and no word stands in two pools, so that a small
tokenizer sees each of them often and a name tells what kind of thing it names.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES: Final = _words(
    """
    Ada Alan Alba Alice Alma Amos Anna Anton Arlo Arno Astrid Aura Basil Bea Beda Benno
    Berta Boris Bruno Cara Carl Cato Celia Cleo Cyril Dag Dalia Dario Dora Edda Edgar Edith
    Egon Elena Elias Elsa Emil Enid Erik Esra Ethel Eva Ezra Fabian Faye Felix Fiona Flora
    Franz Freya Frida Gail Georg Gerda Gilda Gino Greta Gustav Hanna Hans Hazel Hector Hedda
    Helga Henri Hilda Hugo Ida Igor Ilse Inga Iris Isak Ivan Ivo Jana Jasper Jonas Jorn
    Judit Julia Jutta Karin Kasper Klara Knut Lara Lars Lea Lena Leo Linus Lucas Luisa Magda
    Malte Mara Marek Marta Max Mila Mira Moritz Nadia Nell Nils Nina Nora Odette Olaf Olga
    Oskar Otto Paula Pavel Petra Quinn Rafael Ragna Rita Rolf Rosa Rufus Runa Sara Selma
    Sigrid Silas Sofia Stella Sven Tamar Tessa Thea Theo Tomas Tora Ulla Uma Urs Vera Viktor
    Vilma Wanda Willem Xenia Yara Yves Zelda Zora
    """
)

LAST_NAMES: Final = _words(
    """
    Balberg Balmar Balsky Balton Barger Barka Barsky Barson Berberg Berka Bernak Berrick
    Bolger Bolner Branmond Branrick Bransen Bransky Branter Calter Calzek Corlen Corray
    Corson Dalmond Dalnak Daltan Darger Darka Darvik Delder Dellin Delner Delsen Delwen
    Delwin Dorder Dordin Dorger Dorlen Dortan Dorthal Dorwin Falman Faltan Falwin Fenka
    Fenlen Fenmar Fenson Fermar Fersen Gallin Galzek Garray Garson Gartan Garwin Garzek
    Gorwen Haldova Halkin Halson Hardan Harros Harvik Harwen Harwin Harzek Helberg Helkin
    Hellin Helnik Helray Helros Jarkin Jarlin Jarnik Jarrick Jartan Kalkin Kallin Kalmar
    Kalton Kelberg Kelka Kellin Kelnik Kelrick Keltan Korka Kornik Korsen Kortan Korwin
    Lamgan Lamlen Lamrick Lamwin Lanberg Lanby Lankin Lanman Lannik Lenby Lenger Lenlen
    Lennik Lenray Lenthal Lenwen Lorder Lordova Lorson Lorton Maldan Markin Marnak Marray
    Marsky Morlen Morlin Morman Mormond Morner Mornik Morray Morros Norner Norray Norros
    Palsky Palson Perger Perkin Perlen Perner Perwen Polgan Pollin Polsen Raldan Ralthal
    Rennak Renson Renwin Rosberg Rosmar Rosray Rosvik Saldova Salner Salsen Salwin Selger
    Sellen Sellin Selman Selner Selray Sordan Sorkin Sorthal Sorzek Talder Talsky Talthal
    Talwin Tarby Tardin Tarvik Torgan Torman Valdan Valdova Valson Valton Valvik Valzek
    Varka Varlin Vartan Velby Velder Velray Velrick Velthal Verrick Versky Verthal Waldin
    Walrick Wilray Wilton Wilwen Zanby Zandan Zandin Zordova Zorzek
    """
)

PLACE_PREFIXES: Final = _words(
    """
    Upper Lower East West North South Great Little Inner Outer High Low Near Far
    """
)

PLACE_WORDS: Final = _words(
    """
    Abhurst Abland Abworth Aldmere Aldmouth Arndale Arnden Arnhaven Arnley Arnmere Arnmouth
    Arnness Belcott Belford Belland Belley Belmouth Belshaw Belton Bexfield Bexford Bexside
    Bexton Birham Birmoor Birmouth Birton Birworth Brobury Broden Broport Broshaw Cambury
    Camford Camlow Chelcott Chelgate Chelshaw Chelside Clifness Crobury Cromoor Crostead
    Duncott Dunland Dunshaw Edden Edshaw Edstow Export Exside Faldale Falford Falgate
    Falholm Falside Gisbury Huxcombe Huxgate Huxstow Kenworth Kirley Kirness Kirstow Ludgate
    Ludland Ludlow Ludton Ludworth Lynholm Lynside Lynton Melbury Melden Melham Melworth
    Mondale Monstow Narham Narmouth Narton Nesgate Nesmere Ockland Ockley Ockport Oldbury
    Oldcott Oldfield Oldgate Oldport Oldton Penholm Penley Presgate Presness Quarcott
    Quarness Rasbury Rasfield Rasworth Ripcombe Ripfield Ripford Ripmere Roscombe Rosden
    Roshaven Rosport Salhurst Salland Shelcott Sheldale Shelden Shelholm Shelshaw Skeport
    Stavgate Stavham Sutley Tavden Tavfield Tavgate Tavland Tavmoor Tavstow Thorbury
    Thorgate Thorland Tilbland Tolden Tolford Tolholm Trevdale Trevholm Ulgate Ulhaven
    Uxholm Uxport Uxstead Wexlow Wexport Whitley Whitness Wymdale Wymden Wymfield Yarhaven
    Yarhurst Yarlow
    """
)

TITLE_WORDS: Final = _words(
    """
    Acorn Alder Almond Amber Anchor Anvil Apple April Arrow Ash Aspen Autumn Badger Bamboo
    Banner Barley Basalt Basket Beacon Bear Beaver Birch Blossom Blue Bramble Brass Bronze
    Buffalo Butter Cactus Candle Canyon Carbon Castle Cedar Chalk Cherry Cinder Circle
    Clover Cobalt Cobra Comet Compass Copper Coral Cotton Cradle Crane Crimson Crystal
    Dagger Daisy Dawn Deer Delta Desert Diamond Dolphin Dragon Drum Dune Eagle Ebony Echo
    Elder Ember Emerald Falcon Feather Fern Flint Fox Frost Garnet Gazelle Ginger Golden
    Granite Grape Green Gull Hammer Harbor Harvest Hawk Hazelnut Heather Hedge Heron Hickory
    Honey Horizon Hornet Hyacinth Ice Indigo Iron Ivory Jade Jaguar Jasmine Juniper Kestrel
    Kite Lagoon Lantern Lark Laurel Lemon Leopard Lilac Lily Linen Lotus Lunar Lynx Magnet
    Magnolia Marble Marigold Meadow Mercury Midnight Mint Moon Morning Moss Mulberry Mustard
    Nectar Needle Nettle Night Oak Olive Onyx Opal Orange Orchid Otter Owl Oyster Panther
    Parrot Peach Pearl Pebble Pepper Phoenix Pigeon Pilot Pine Pioneer Planet Plum Polar
    Poppy Prairie Purple Quartz Quill Rabbit Raven Red Reed Ribbon River Robin Rocket Ruby
    Sage Salmon Sapphire Shadow Sierra Silk Silver Sparrow Spring Spruce Star Stone Summer
    Sunset Swan Tiger Timber Topaz Torch Tulip Velvet Violet Walnut Willow Winter Wolf
    Yellow Zephyr Zinc
    """
)

COMPANY_HEADS: Final = _words(
    """
    Works Mills Press Lines Foundry Trading Motors Bakery Glass Textiles Tools Brothers
    Shipping Paper Clocks Radio
    """
)

WORK_HEADS: Final = _words(
    """
    Ballad Chronicle Sonata Elegy Letters Tales Waltz Fable Hymn Legend Memoir Parade Rhapsody
    Saga Serenade Verses
    """
)
