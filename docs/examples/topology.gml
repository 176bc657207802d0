graph [
  node [ id 0 label "Hub" lat 50.08 lon 14.43 ]
  node [ id 1 label "North" lat 50.20 lon 14.43 ]
  node [ id 2 label "South" lat 49.95 lon 14.43 ]
  edge [ source 0 target 1 dist 13.3 ]
  edge [ source 0 target 2 dist 14.5 ]
]
