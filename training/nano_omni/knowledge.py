"""What nano-omni is taught to know: plain tables."""

NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
CAPITALS = {
    "France": "Paris",
    "England": "London",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Russia": "Moscow",
    "Egypt": "Cairo",
    "Canada": "Ottawa",
    "Greece": "Athens",
    "Portugal": "Lisbon",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Hungary": "Budapest",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Ireland": "Dublin",
    "Belgium": "Brussels",
    "Turkey": "Ankara",
    "India": "Delhi",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Kenya": "Nairobi",
    "Thailand": "Bangkok",
    "Korea": "Seoul",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "left": "right",
    "day": "night",
    "black": "white",
    "fast": "slow",
    "old": "young",
    "rich": "poor",
    "wet": "dry",
    "open": "closed",
    "high": "low",
    "light": "dark",
    "hard": "soft",
    "happy": "sad",
    "good": "bad",
    "loud": "quiet",
    "long": "short",
    "early": "late",
    "full": "empty",
    "clean": "dirty",
    "strong": "weak",
    "thick": "thin",
    "near": "far",
    "north": "south",
    "east": "west",
    "first": "last",
    "right": "wrong",
    "sweet": "sour",
    "summer": "winter",
}
COLOURS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "the sun": "yellow",
    "blood": "red",
    "coal": "black",
    "a banana": "yellow",
    "a lemon": "yellow",
    "a tomato": "red",
    "a carrot": "orange",
    "an orange": "orange",
    "milk": "white",
    "a leaf": "green",
    "the sea": "blue",
    "chocolate": "brown",
    "a strawberry": "red",
    "an elephant": "gray",
    "a pig": "pink",
    "the night": "black",
    "a frog": "green",
}
NAMES = (
    "Anna Ben Clara David Emma Frank Grace Henry Ivy Jack Kate Leo Lucy Mark Mary Nina Oscar Paul Peter Rosa Sam Sara"
    " Simon Tom Victor"
).split()
SPELLABLE = (
    "cat dog sun sky red blue tree fish bird milk book door hand king lion moon rain ship star wind apple bread chair"
    " green house horse light mouse paper table water"
).split()
SHORT = ("Yes", "No", "OK", "Bye", "Hi", "Hello", "Thanks", "Stop", "Go", "Please", "Sorry", "Good", "Wow", "Right")
UNKNOWN = "I do not know that."
# Whose capitals it does not know.
OTHER_COUNTRIES = (
    "Brazil Chile Mexico Bolivia Iceland Latvia Estonia Lithuania Ukraine Romania Bulgaria Serbia Croatia Albania Malta"
    " Cyprus Israel Jordan Iran Iraq Nepal Vietnam Malaysia Indonesia Australia Morocco Algeria Tunisia Nigeria Ghana"
    " Uganda Angola Zambia Mali Senegal Panama Haiti Jamaica Mongolia Singapore Scotland Wales Atlantis"
).split()
