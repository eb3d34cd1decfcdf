"""The App's colours in the scales that the admin's style sheet wants (design tokens)."""

ADMIN_COLOURS: dict[str, dict[str, str]] = {
    "base": {
        "50": "#f7f6f2",
        "100": "#efede7",
        "200": "#dedbd2",
        "300": "#c9c5ba",
        "400": "#8b9096",
        "500": "#666c72",
        "600": "#5a6066",
        "700": "#3b4146",
        "800": "#2c3135",
        "900": "#1c2023",
        "950": "#15181a",
    },
    "primary": {
        "50": "#eef6f5",
        "100": "#dcebe8",
        "200": "#b9d9d5",
        "300": "#8dc7c1",
        "400": "#5cc2b8",
        "500": "#5cc2b8",
        "600": "#0b6e69",
        "700": "#0a5f5b",
        "800": "#094f4b",
        "900": "#073f3c",
        "950": "#1d3331",
    },
}
